#include "runtime/cubin.h"

#include "jit/compile.h"
#include "jit/embedded.h"
#include "jit/source.h"
#include "runtime/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace nq {
namespace {

// Of the list of key fields below and of what the entry's metadata means.
constexpr const char* kSchema = "1";

KeyFields compiler_fields(const Nvrtc& nvrtc) {
    KeyFields fields;
    fields.add("nvrtc", nvrtc.identity);
    fields.add("version", text(nvrtc.version));
    fields.add("options", fmt::format("{}", fmt::join(gated_options(nvrtc.version), " ")));
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

std::string metadata(Context& context, const CubinRequest& request, const KeyFields& compiler,
                     const Compiled& compiled) {
    nlohmann::json object = {
        {"producer", fmt::format("normquant {}.{}.{}", NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH)},
        {"request", to_json(request.fields)},
        {"compiler", to_json(compiler)},
        {"plan",
         {{"variant", name(request.plan.variant)},
          {"threads_per_row", request.plan.threads_per_row},
          {"block_threads", request.plan.block_threads},
          {"load_bytes", request.plan.load_bytes}}},
        {"compile_ms", static_cast<double>(compiled.nanoseconds) / 1e6},
        {"log", compiled.log},
    };
    if (const auto driver = context.driver_if_loaded()) object["driver"] = driver->version;
    // An NVRTC log may quote bytes that are not UTF-8.
    return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

SharedCubin count(Context& context, std::optional<Entry> entry) {
    Counters& counters = context.counters();
    if (!entry) {
        ++counters.disk_misses;
        return nullptr;
    }
    ++counters.disk_hits;
    return std::make_shared<const Cubin>(Cubin{std::move(entry->cubin), true, 0});
}

Result<SharedCubin> compile_and_publish(Context& context, const CubinRequest& request, const Nvrtc& nvrtc,
                                        const KeyFields& compiler) {
    Result<Compiled> compiled = compile(nvrtc, request.source, request.arch);
    if (!compiled) return std::move(compiled).error();
    Counters& counters = context.counters();
    ++counters.compiles;
    counters.compile_ns += compiled->nanoseconds;
    if (!compiled->log.empty()) context.log().info("NVRTC: " + compiled->log);

    if (Store* store = context.store()) {
        store->publish(request.arch.name(), {request.key, compiler_id(compiler),
                                             metadata(context, request, compiler, *compiled), compiled->cubin});
    }
    // Never read back: what was compiled is used even where it could not be stored.
    return std::make_shared<const Cubin>(Cubin{std::move(compiled->cubin), false, compiled->nanoseconds});
}

}  // namespace

CubinRequest make_request(const Problem& problem, const Plan& plan, const Arch& arch) {
    CubinRequest request{plan, arch, render_source(problem, plan, arch), {}, {}};
    KeyFields& fields = request.fields;
    fields.add("schema", kSchema);
    fields.add("problem", canonical_text(problem));
    fields.add("variant", canonical_text(plan));
    fields.add("arch", arch.name());
    fields.add("source", request.source);
    fields.add("headers", embedded_digest());
    fields.add("options", fmt::format("{}", fmt::join(base_options(arch), " ")));
    request.key = request_key(fields);
    return request;
}

SharedCubin find_cubin(Context& context, const CubinRequest& request) {
    Store* store = context.store();
    return store == nullptr ? nullptr : count(context, store->load_any_compiler(request.arch.name(), request.key));
}

Result<SharedCubin> obtain_cubin(Context& context, const CubinRequest& request, const Nvrtc& nvrtc) {
    return context.cubin_flights().run(request.key, [&]() -> Result<SharedCubin> {
        const KeyFields compiler = compiler_fields(nvrtc);
        if (Store* store = context.store()) {
            if (SharedCubin cubin =
                    count(context, store->load(request.arch.name(), request.key, compiler_id(compiler)))) {
                return cubin;
            }
        }
        return compile_and_publish(context, request, nvrtc, compiler);
    });
}

}  // namespace nq
