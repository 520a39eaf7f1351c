#include "runtime/cubin.h"

#include "jit/compile.h"
#include "jit/cubin_info.h"
#include "jit/embedded.h"
#include "jit/source.h"
#include "problem/option_values.h"
#include "runtime/context.h"
#include "runtime/dump.h"
#include "support/profiler_range.h"

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
KeyFields compiler_fields(const NvrtcFile& nvrtc, const std::string& environment) {
    KeyFields fields;
    fields.add("nvrtc", nvrtc.identity);
    fields.add("environment", environment);
    return fields;
}

nlohmann::json to_json(const KeyFields& fields) {
    nlohmann::json object = nlohmann::json::object();
    // The source is long and follows from the other fields.
    for (const auto& [label, value] : fields.fields)
        object[label] = label == "source" ? "xxh3:" + hex(digest128(value)) : value;
    return object;
}

struct Timed {
    Result<Compiled> compiled;
    std::uint64_t nanoseconds = 0;
};

std::string metadata(Context& context, const CubinRequest& request, const Nvrtc& nvrtc, const Timed& done) {
    const Compiled& compiled = *done.compiled;
    const CubinInfo info = cubin_info(compiled.cubin);
    nlohmann::json object = {
        {"producer", fmt::format("normquant {}.{}.{}", NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH)},
        {"request", to_json(request.fields)},
        {"compiler", to_json(compiler_fields(nvrtc, nvrtc_environment()))},
        {"nvrtc", text(nvrtc.version)},
        {"nvrtc_build", info.toolkit},
        {"options", compile_options(request.arch, nvrtc.version)},
        {"plan",
         {{"variant", name(request.plan.variant)},
          {"threads_per_row", request.plan.threads_per_row},
          {"block_threads", request.plan.block_threads},
          {"load_bytes", request.plan.load_bytes},
          {"row_groups", request.plan.row_groups},
          {"row_buffers", request.plan.row_buffers},
          {"vector", request.plan.vector},
          {"cluster", request.plan.cluster}}},
        {"registers", info.registers},
        {"compile_ms", static_cast<double>(done.nanoseconds) / 1e6},
        {"log", compiled.log},
    };
    if (const auto driver = context.driver_if_loaded()) object["driver"] = driver->version;
    // An NVRTC log may quote bytes that are not UTF-8.
    return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

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

// Said by an operator's log or error: nothing else shows that an upgrade has left a bundle behind.
std::string foreign_text(const std::string& bundle) {
    return fmt::format("bundle {} was made from other kernel sources than this library has, and none of its kernels is used: make it again",
                       bundle);
}

// For a shell.
std::string quoted(const std::string& path) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+:=@%,";
    if (path.find_first_not_of(kPlain) == std::string::npos) return path;
    std::string text = "'";
    for (const char c : path) text += c == '\'' ? "'\\''" : std::string(1, c);
    return text + "'";
}

std::string command_to_add(Context& context, const CubinRequest& request) {
    const std::string bundle = context.cache().first_bundle();
    return warmup_command(request.asked, request.arch) + (bundle.empty() ? "" : " --bundle " + quoted(bundle));
}

Timed compile_now(Context& context, const CubinRequest& request, const Nvrtc& nvrtc) {
    const auto begin = std::chrono::steady_clock::now();
    const ProfilerRange range(fmt::format("compile {} for {}, {}", request.problem, request.arch.name(), name(request.plan.variant)));
    const bool dumped = !context.config().dump_dir.empty();
    // The PTX is a result that the compile has in any case.
    Result<Compiled> compiled = compile(nvrtc, request.source, request.arch, {.options = {}, .ptx = dumped});
    const auto nanoseconds =
        static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin) / std::chrono::nanoseconds(1));
    Counters& counters = context.process().counters;
    if (dumped) dump(context, request, nvrtc, compiled);
    add(counters.compile_ns, nanoseconds);
    add(compiled ? counters.compiles : counters.failed_compiles);
    return {std::move(compiled), nanoseconds};
}

// Before it begins, for its caller stalls.
void tell_of_stall(Context& context, const CubinRequest& request) {
    if (!request.in_run || context.process().stall_told.exchange(true)) return;
    context.log().warn(fmt::format("nq_run compiles \"{}\" for {} while its caller waits; nq_prepare beforehand, or {}, keeps that out of it "
                                   "(said once; NORMQUANT_LOG=info names every compile)",
                                   request.problem, request.arch.name(), warmup_command(request.asked, request.arch)));
}

// For people and for the caller's own accounts: they may take their time, so nobody waits for a lock meanwhile.
void tell(Context& context, const CubinRequest& request, const Timed& done) {
    if (done.compiled) {
        context.log().info(fmt::format("compiled \"{}\", {}, for {} in {} ms{}{}", request.problem,
                                       canonical_text(request.plan), request.arch.name(), done.nanoseconds / 1'000'000,
                                       done.compiled->log.empty() ? "" : "; NVRTC: ", done.compiled->log));
    }
    report(context, request, done.compiled ? NQ_OK : done.compiled.error().status, done.nanoseconds);
    if (context.process().foreign_told.exchange(true)) return;
    for (const std::string& bundle : context.cache().foreign_bundles(of_these_sources)) context.log().warn(foreign_text(bundle));
}

}  // namespace

CubinRequest make_request(const Problem& asked, const Plan& plan, const Arch& arch) {
    Problem problem = asked;
    problem.overlap = asked.overlap && features(arch).overlap;  // else it changes no code
    CubinRequest request{asked, canonical_text(problem), plan, arch, render_source(problem, plan, arch), {}, {}};
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

bool of_these_sources(const Entry& entry) {
    const auto metadata = nlohmann::json::parse(entry.metadata, nullptr, /*allow_exceptions=*/false);
    if (!metadata.is_object()) return false;
    const auto request = metadata.find("request");
    if (request == metadata.end() || !request->is_object()) return false;
    const auto has = [&](const char* label, const std::string& value) {
        const auto field = request->find(label);
        return field != request->end() && *field == value;
    };
    return has("schema", kSchema) && has("headers", embedded_digest()) && has("gated options", gated_options_rule());
}

CompilerId compiler_of(const NvrtcFile& nvrtc, const std::string& environment) {
    return compiler_id(compiler_fields(nvrtc, environment));
}

SharedCubin find_cubin(Context& context, const CubinRequest& request, const std::optional<CompilerId>& compiler) {
    std::optional<Entry> entry = context.cache().find(request.arch.name(), request.key, compiler);
    return entry ? std::make_shared<const Cubin>(Cubin{std::move(entry->cubin), entry->compiler, true, 0}) : nullptr;
}

Result<SharedCubin> obtain_cubin(Context& context, const CubinRequest& request, const Nvrtc& nvrtc,
                                 Cache::Layers layers) {
    ProcessState& state = context.process();
    return state.cubin_flights.run({request.key, layers}, [&]() -> Result<SharedCubin> {
        const CompilerId compiler = compiler_of(nvrtc);
        const std::pair key(request.key, compiler);
        const auto remember = [&](Result<SharedCubin> outcome) {
            const std::lock_guard lock(state.compiled_mutex);
            return state.compiled.insert_or_assign(key, std::move(outcome)).first->second;
        };
        {
            const std::lock_guard lock(state.compiled_mutex);
            if (const auto known = state.compiled.find(key); known != state.compiled.end()) return known->second;
        }

        std::optional<Timed> done;
        const auto make = [&]() -> Result<Entry> {
            // It may have been sealed since this began.
            if (std::optional<Error> ban = context.compile_ban()) return *std::move(ban);
            tell_of_stall(context, request);
            done = compile_now(context, request, nvrtc);
            if (!done->compiled) return done->compiled.error();
            std::string text = metadata(context, request, nvrtc, *done);
            return Entry{request.key, compiler, std::move(text), done->compiled->cubin};
        };
        auto obtained = context.cache().obtain(request.arch.name(), request.key, compiler, make, layers);
        if (done) tell(context, request, *done);
        if (!obtained) {
            // Lack of memory may pass, and a seal is no compile.
            const nq_status status = obtained.error().status;
            const bool final = status == NQ_ERR_COMPILE_FAILED || status == NQ_ERR_NVRTC_MISSING;
            return final ? remember(obtained.error()) : obtained.error();
        }
        auto cubin = std::make_shared<const Cubin>(Cubin{std::move(obtained->entry.cubin), obtained->entry.compiler,
                                                         obtained->cached, done ? done->nanoseconds : 0,
                                                         std::move(obtained->stored)});
        return cubin->stored ? cubin : remember(cubin);
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
    for (const std::string& bundle : context.cache().foreign_bundles(of_these_sources)) reason.message += " " + foreign_text(bundle) + ".";
    const CubinRequest& first = requests.front();
    // What a plan override asks for, no warm-up makes.
    if (std::ranges::count(plans_for(first.asked, first.arch), first.plan) != 0)
        reason.message += " To add: " + command_to_add(context, first);
    return reason;
}

}  // namespace nq
