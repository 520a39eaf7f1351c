// normquant cache explain: what a problem's kernels are filed under, where they would come from, and why two differ.
#include "cache_commands.h"
#include "cache_view.h"
#include "cuda/nvrtc.h"
#include "plan/plan.h"
#include "printable.h"
#include "problems.h"
#include "runtime/cubin.h"
#include "targets.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace nq::cli {
namespace {

constexpr const char* kExplainFooter =
    R"(For every kernel of the problem: the fields that its request key is made of (of the source, the digest), the key, the
file that it would have, and what a context would do now: use an entry of a layer or of the root, or compile it, and
with which NVRTC. Compiles nothing.

  --against ENTRY   compares with another entry, field by field: why is that one not used?
  --bundle FILE     asks this bundle alone: does it have what an engine needs?

Examples:
  normquant cache explain --hidden 4096 --arch sm_90
  normquant cache explain --hidden 4096 --arch sm_90 --variant latency --against 3fa94c
  normquant cache explain --hidden 4096,7168 --arch sm_100f --bundle kernels.nqb
Exit codes: 0 done, 1 no such entry, 2 bad option.)";

struct ExplainOptions {
    ProblemLists lists{.formats = {"nvfp4"}, .layouts = {"linear"}};
    std::string variant;
    std::string against;
    ViewOptions view;
};

std::string digest_of_source(const std::string& value) { return "xxh3:" + hex(digest128(value)); }

// As an entry's metadata has them.
Json to_json(const KeyFields& fields) {
    Json json = Json::object();
    for (const auto& [label, value] : fields.fields) json[label] = label == "source" ? digest_of_source(value) : value;
    return json;
}

Json describe(const NvrtcFile& nvrtc) {
    return {{"path", nvrtc.path},
            {"origin", nvrtc.origin},
            {"identity", nvrtc.identity},
            {"environment", nvrtc_environment()},
            {"compiler", hex(compiler_of(nvrtc))}};
}

struct Source {
    Json json;
    std::string text;
};

Source served_by(const Place& place, const std::string& path, const Entry& entry) {
    const Json metadata = parse_metadata(entry.metadata);
    const Json version = metadata.is_object() ? metadata.value("nvrtc", Json("unknown")) : Json("unknown");
    const std::string nvrtc = version.is_string() ? version.get<std::string>() : version.dump();
    return {{{"place", name(place.kind)}, {"path", path}, {"compiler", hex(entry.compiler)}, {"nvrtc", nvrtc}},
            fmt::format("{} {}, made by NVRTC {} (compiler {})", name(place.kind), path, nvrtc, hex(entry.compiler))};
}

// As Cache::find goes, without its counters. nullopt: nowhere.
std::optional<Source> find_source(const CacheView& view, const CubinRequest& request,
                                  const std::optional<CompilerId>& compiler) {
    const std::string arch = request.arch.name();
    for (const Place& place : view.places()) {
        if (place.bundle) {
            for (const BundleItem* item : place.bundle->find(request.key)) {
                if (const auto entry = place.bundle->read(*item)) return served_by(place, place.path, *entry);
            }
        }
        if (place.store == nullptr) continue;
        const bool exact = place.kind == Place::Kind::root && compiler.has_value();
        const auto entry =
            exact ? place.store->load(arch, request.key, *compiler) : place.store->load_any_compiler(arch, request.key);
        if (entry) return served_by(place, place.store->path_of(arch, entry->key, entry->compiler), *entry);
    }
    return std::nullopt;
}

// Loaded when the first kernel is to be compiled, to see whether it can be.
class Compiler {
public:
    explicit Compiler(const NvrtcSearch& search) : search_(search) {}

    // Why it would not compile this kernel.
    std::optional<std::string> refusal(const CubinRequest& request) {
        if (!nvrtc_) nvrtc_ = load_nvrtc(search_);
        if (!*nvrtc_) return nvrtc_->error().message;
        const Nvrtc& nvrtc = ***nvrtc_;
        if (const Outcome targeted = nvrtc.check(request.arch); !targeted) return targeted.error().message;
        if (request.plan.load_bytes == 32 && !nvrtc.loads_256())
            return fmt::format("NVRTC {} at {} compiles no 32-byte loads, 12.9 and newer do", text(nvrtc.version),
                               nvrtc.path);
        return std::nullopt;
    }

private:
    const NvrtcSearch& search_;
    std::optional<Result<std::shared_ptr<const Nvrtc>>> nvrtc_;
};

// Nowhere to be had. Without the 32-byte variants, a context goes on.
Source nothing(const CubinRequest& request, const std::string& reason) {
    const bool optional = request.plan.load_bytes == 32;
    return {{{"place", "none"}, {"reason", reason}, {"needed", !optional}},
            fmt::format("nothing: not cached, and {}{}", reason,
                        optional ? "; not needed: the variant with 16-byte loads stands in for it" : "")};
}

// What a context would do.
Source source_of(const CacheView& view, const CubinRequest& request, const Result<NvrtcFile>& nvrtc,
                 Compiler& compiler) {
    const bool jit = view.config().jit;
    const auto compiler_id = jit && nvrtc ? std::optional(compiler_of(*nvrtc)) : std::nullopt;
    if (auto found = find_source(view, request, compiler_id)) return *std::move(found);
    if (!jit) return nothing(request, "NORMQUANT_JIT is off");
    if (!nvrtc) return nothing(request, nvrtc.error().message);
    if (const auto reason = compiler.refusal(request)) return nothing(request, *reason);
    return {{{"place", "compile"}, {"nvrtc", nvrtc->path}},
            fmt::format("a compile with {}, found by {}", nvrtc->path, nvrtc->origin)};
}

// Fields of which one side has another value than the other, or none.
void add_differences(Json& out, const char* group, const Json& here, const Json& there) {
    const auto value = [](const Json& fields, const std::string& label) {
        return fields.is_object() ? fields.value(label, Json()) : Json();
    };
    const auto add = [&](const std::string& label) {
        const Json ours = value(here, label), theirs = value(there, label);
        if (ours != theirs) out.push_back({{"group", group}, {"field", label}, {"here", ours}, {"there", theirs}});
    };
    for (const auto& [label, unused] : here.items()) add(label);
    if (!there.is_object()) return;
    for (const auto& [label, unused] : there.items()) {
        if (!here.contains(label)) add(label);
    }
}

std::string value_text(const Json& value) {
    if (value.is_null()) return "(none)";
    return printable(value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The difference from one other entry.
Json compare(const Json& request, const Result<NvrtcFile>& nvrtc, const Item& other, std::string& text) {
    Json json = {{"id", other.id}, {"path", other.stored.path}};
    text += fmt::format("  against {} in {}\n", other.id.substr(0, 32), printable(other.stored.path));
    if (!other.stored.entry) {
        json["error"] = other.stored.entry.error().message;
        text += fmt::format("    it is bad: {}\n", printable(other.stored.entry.error().message));
        return json;
    }
    const Json metadata = parse_metadata(other.stored.entry->metadata);
    const auto group = [&](const char* label) {
        return metadata.is_object() ? metadata.value(label, Json::object()) : Json::object();
    };
    Json differences = Json::array();
    add_differences(differences, "request", request, group("request"));
    if (nvrtc) {
        add_differences(differences, "compiler", Json{{"nvrtc", nvrtc->identity}, {"environment", nvrtc_environment()}},
                        group("compiler"));
    }
    for (const Json& difference : differences) {
        text += fmt::format("    {} {} differs\n      here:  {}\n      there: {}\n",
                            difference["group"].get<std::string>(), printable(difference["field"].get<std::string>()),
                            value_text(difference["here"]), value_text(difference["there"]));
    }
    if (differences.empty()) text += "    no field differs\n";
    json["differences"] = std::move(differences);
    return json;
}

Result<std::vector<CubinRequest>> requests_of(const ExplainOptions& options) {
    const auto problems = problems_of(options.lists);
    if (!problems) return problems.error();
    std::vector<std::string> no_target;  // none: an NVRTC that knows every one is assumed
    const auto archs = targets_of(options.lists.archs, nullptr, no_target);
    if (!archs) return archs.error();
    std::vector<CubinRequest> requests;
    std::string variants;
    for (const Problem& problem : *problems) {
        for (const Arch& arch : *archs) {
            for (const Plan& plan : plans_for(problem, arch)) {
                if (options.variant.empty() || options.variant == name(plan.variant))
                    requests.push_back(make_request(problem, plan, arch));
                if (variants.find(name(plan.variant)) == std::string::npos)
                    variants += fmt::format("{}{}", variants.empty() ? "" : ", ", name(plan.variant));
            }
        }
    }
    if (requests.empty())
        return usage_error(
            fmt::format("--variant '{}' does not exist here: choose one of {}", options.variant, variants));
    return requests;
}

Result<Report> explain(const ExplainOptions& options) {
    const auto requests = requests_of(options);
    if (!requests) return requests.error();
    const auto opened = CacheView::open_as_is(options.view, Access::look);
    if (!opened) return opened.error();
    CacheView& view = **opened;
    std::vector<Item> others;
    if (!options.against.empty()) {
        auto found = view.find(options.against);
        if (!found) return found.error();
        others = *std::move(found);
    }
    const Result<NvrtcFile> nvrtc =
        view.config().jit ? locate_nvrtc(view.config().nvrtc)
                          : Result<NvrtcFile>(Error{NQ_ERR_NOT_PREPARED, "NORMQUANT_JIT is off: none is looked for"});

    Report report;
    Json faults = Json::array();
    for (const Place& place : view.places()) {
        if (!place.fault) continue;
        report.text += fmt::format("not used: {}\n", printable(place.fault->message));
        faults.push_back({{"path", place.path}, {"error", place.fault->message}});
    }
    report.text += nvrtc ? fmt::format("NVRTC {} found by {}, compiler {}\n", printable(nvrtc->path), nvrtc->origin,
                                       hex(compiler_of(*nvrtc)))
                         : fmt::format("no NVRTC: {}\n", printable(nvrtc.error().message));
    Compiler compiler(view.config().nvrtc);
    Json kernels = Json::array();
    for (const CubinRequest& request : *requests) {
        const Json fields = to_json(request.fields);
        const Source source = source_of(view, request, nvrtc, compiler);
        Json kernel = {{"key", hex(request.key)}, {"fields", fields}};
        report.text += fmt::format("{} for {}\n", hex(request.key), request.arch.name());
        for (const auto& [label, value] : fields.items())
            report.text += fmt::format("  {:<14}{}\n", label, printable(value.get<std::string>()));
        if (!view.root_path().empty() && nvrtc) {
            kernel["path"] = view.places().back().store->path_of(request.arch.name(), request.key, compiler_of(*nvrtc));
            report.text += fmt::format("  {:<14}{}\n", "path", printable(kernel["path"].get<std::string>()));
        }
        kernel["source"] = source.json;
        report.text += fmt::format("  {:<14}{}\n", "comes from", printable(source.text));
        Json bad = Json::array();
        for (const std::string& message : view.take_messages()) {
            bad.push_back(message);
            report.text += fmt::format("  {:<14}{}\n", "passed over", printable(message));
        }
        kernel["passed_over"] = std::move(bad);
        if (!others.empty()) {
            Json against = Json::array();
            for (const Item& other : others) against.push_back(compare(fields, nvrtc, other, report.text));
            kernel["against"] = std::move(against);
        }
        kernels.push_back(std::move(kernel));
    }
    report.json = {{"command", "cache explain"},
                   {"root", view.root_path()},
                   {"not_used", std::move(faults)},
                   {"nvrtc", nvrtc ? describe(*nvrtc) : Json{{"error", nvrtc.error().message}}},
                   {"kernels", std::move(kernels)}};
    return report;
}

}  // namespace

Command add_cache_explain(CLI::App& cache) {
    auto options = std::make_shared<ExplainOptions>();
    CLI::App* app = cache.add_subcommand("explain", "The key of a problem's kernels, and where they would come from");
    add_problem_options(*app, options->lists);
    for (const char* name : {"--hidden", "--arch"}) app->get_option(name)->required();
    app->add_option("--variant", options->variant, "One plan only: throughput, latency, throughput_32b, latency_32b");
    app->add_option("--against", options->against, "An entry to compare with: the beginning of a key, or a path");
    add_view_options(*app, options->view);
    app->footer(kExplainFooter);
    return {app, [options] { return explain(*options); }};
}

}  // namespace nq::cli
