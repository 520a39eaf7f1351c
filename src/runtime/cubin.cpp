#include "runtime/cubin.h"

#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "jit/embedded.h"
#include "jit/source.h"
#include "runtime/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace nq {
namespace {

// Of the list of key fields below and of what the entry's metadata means.
constexpr const char* kSchema = "2";

// Which options an NVRTC gets follows from its version, and that from the file that the identity stands for; the rule
// itself is part of the request key.
KeyFields compiler_fields(const NvrtcFile& nvrtc) {
    KeyFields fields;
    fields.add("nvrtc", nvrtc.identity);
    fields.add("environment", nvrtc.environment);
    return fields;
}

nlohmann::json to_json(const KeyFields& fields) {
    nlohmann::json object = nlohmann::json::object();
    // The source is long and follows from the other fields.
    for (const auto& [label, value] : fields.fields)
        object[label] = label == "source" ? "xxh3:" + hex(digest128(value)) : value;
    return object;
}

std::string metadata(Context& context, const CubinRequest& request, const Nvrtc& nvrtc, const Compiled& compiled) {
    const CubinInfo info = cubin_info(compiled.cubin);
    nlohmann::json object = {
        {"producer", fmt::format("normquant {}.{}.{}", NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH)},
        {"request", to_json(request.fields)},
        {"compiler", to_json(compiler_fields(nvrtc))},
        {"nvrtc", text(nvrtc.version)},
        {"nvrtc_build", info.toolkit},
        {"options", compile_options(request.arch, nvrtc.version)},
        {"plan",
         {{"variant", name(request.plan.variant)},
          {"threads_per_row", request.plan.threads_per_row},
          {"block_threads", request.plan.block_threads},
          {"load_bytes", request.plan.load_bytes}}},
        {"registers", info.registers},
        {"compile_ms", static_cast<double>(compiled.nanoseconds) / 1e6},
        {"log", compiled.log},
    };
    if (const auto driver = context.driver_if_loaded()) object["driver"] = driver->version;
    // An NVRTC log may quote bytes that are not UTF-8.
    return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A turn of the few that compile at a time.
class CompileSlot {
public:
    explicit CompileSlot(std::counting_semaphore<>& slots) : slots_(slots) { slots_.acquire(); }
    ~CompileSlot() { slots_.release(); }
    CompileSlot(const CompileSlot&) = delete;
    CompileSlot& operator=(const CompileSlot&) = delete;

private:
    std::counting_semaphore<>& slots_;
};

void report(Context& context, const CubinRequest& request, nq_status status, std::uint64_t nanoseconds) {
    if (context.config().compile_callback == nullptr) return;
    const std::string key = hex(request.key), variant = canonical_text(request.plan), arch = request.arch.name();
    nq_compile_event event = {};
    event.struct_size = sizeof event;
    event.status = status;
    event.key = key.c_str();
    event.problem = request.problem.c_str();
    event.variant = variant.c_str();
    event.arch = arch.c_str();
    event.compile_ns = nanoseconds;
    context.config().compile_callback(&event, context.config().compile_payload);
}

Result<Compiled> compile_now(Context& context, const CubinRequest& request, const Nvrtc& nvrtc) {
    ProcessState& state = context.process();
    const auto failure_key = std::pair(request.key, compiler_of(nvrtc));
    {
        const std::lock_guard lock(state.failures_mutex);
        if (const auto failure = state.failures.find(failure_key); failure != state.failures.end())
            return failure->second;
    }
    const CompileSlot slot(state.compile_slots);
    const auto begin = std::chrono::steady_clock::now();
    Result<Compiled> compiled = compile(nvrtc, request.source, request.arch);
    const auto nanoseconds = static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1));
    add(state.counters.compile_ns, nanoseconds);
    if (compiled) {
        add(state.counters.compiles);
        context.log().info(fmt::format("compiled \"{}\", {}, for {} in {} ms{}{}", request.problem,
                                       canonical_text(request.plan), request.arch.name(), nanoseconds / 1'000'000,
                                       compiled->log.empty() ? "" : "; NVRTC: ", compiled->log));
    } else {
        add(state.counters.failed_compiles);
        // Lack of memory may pass.
        if (compiled.error().status == NQ_ERR_COMPILE_FAILED) {
            const std::lock_guard lock(state.failures_mutex);
            state.failures.emplace(failure_key, compiled.error());
        }
    }
    report(context, request, compiled ? NQ_OK : compiled.error().status, nanoseconds);
    return compiled;
}

}  // namespace

CubinRequest make_request(const Problem& problem, const Plan& plan, const Arch& arch) {
    CubinRequest request{canonical_text(problem), plan, arch, render_source(problem, plan, arch), {}, {}};
    KeyFields& fields = request.fields;
    fields.add("schema", kSchema);
    fields.add("problem", request.problem);
    fields.add("variant", canonical_text(plan));
    fields.add("arch", arch.name());
    fields.add("source", request.source);
    fields.add("headers", embedded_digest());
    fields.add("options", fmt::format("{}", fmt::join(base_options(arch), " ")));
    fields.add("gated options", gated_options_rule());
    request.key = request_key(fields);
    return request;
}

CompilerId compiler_of(const NvrtcFile& nvrtc) { return compiler_id(compiler_fields(nvrtc)); }

SharedCubin find_cubin(Context& context, const CubinRequest& request, const std::optional<CompilerId>& compiler) {
    std::optional<Entry> entry = context.cache().find(request.arch.name(), request.key, compiler);
    return entry ? std::make_shared<const Cubin>(Cubin{std::move(entry->cubin), true, 0}) : nullptr;
}

Result<SharedCubin> obtain_cubin(Context& context, const CubinRequest& request, const Nvrtc& nvrtc) {
    return context.process().cubin_flights.run(request.key, [&]() -> Result<SharedCubin> {
        const CompilerId compiler = compiler_of(nvrtc);
        std::uint64_t nanoseconds = 0;
        auto obtained =
            context.cache().obtain(request.arch.name(), request.key, compiler, [&]() -> Result<Entry> {
                Result<Compiled> compiled = compile_now(context, request, nvrtc);
                if (!compiled) return std::move(compiled).error();
                nanoseconds = compiled->nanoseconds;
                std::string text = metadata(context, request, nvrtc, *compiled);
                return Entry{request.key, compiler, std::move(text), std::move(compiled->cubin)};
            });
        if (!obtained) return std::move(obtained).error();
        return std::make_shared<const Cubin>(
            Cubin{std::move(obtained->entry.cubin), obtained->cached, nanoseconds, std::move(obtained->stored)});
    });
}

Error missing_cubins(Context& context, Error reason, const std::vector<CubinRequest>& requests) {
    if (requests.empty()) return reason;  // no target was worth a look
    // The same kernels were looked for under several targets, maybe: they count once.
    add(context.process().counters.misses,
        static_cast<std::uint64_t>(std::ranges::count(requests, requests.front().arch, &CubinRequest::arch)));
    reason.message += ". Not found " + context.cache().places() + ":";
    for (const CubinRequest& request : requests)
        reason.message += fmt::format(" \"{}\" for {}, {}, key {};", request.problem, request.arch.name(),
                                      name(request.plan.variant), hex(request.key));
    reason.message.back() = '.';
    return reason;
}

}  // namespace nq
