// normquant quantize: the operator on files.
#include "command.h"
#include "execution.h"
#include "files.h"
#include "inputs.h"
#include "libraries.h"
#include "npy.h"
#include "options.h"
#include "quality.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

namespace nq::cli {
namespace {

constexpr const char* kQuantizeFooter =
    R"(What it computes, a row at a time: y = x / sqrt(mean(x^2) + eps) * weight, then y as FP4 codes with one scale a block:
  nvfp4   blocks of 16, E4M3 scales, one global scale for the tensor      y ~ code * scale / global_scale
  mxfp4   blocks of 32, power-of-two scales (UE8M0), no global scale      y ~ code * scale

Inputs:
  .npy          float16; bfloat16 stored as uint16 or V2 with --dtype bf16; float32, which is rounded to --dtype
  .safetensors  F16, BF16, F32; FILE:TENSOR names the tensor
  The weight is [H], of the input's type or float32 (used as it is).

Outputs in DIR: fp4.npy (uint8 [M, H/2], element 2i in the low nibble of byte i), scales.npy (uint8 [M, H/block], flat when
swizzled), report.json.

Examples:
  normquant quantize --input x.npy --weight w.npy --out out
  normquant quantize --input model.safetensors:hidden --weight model.safetensors:norm --format mxfp4 --layout swizzled \
      --eps 1e-5 --out out --verify
Exit codes: 0 done, 1 failed or --verify found a difference, 2 bad option or input.)";

struct QuantizeOptions {
    std::string input;
    std::string weight;
    std::string format = "nvfp4";
    std::string block;
    std::string scale;
    std::string layout = "linear";
    std::string dtype;
    std::string eps = "1e-6";
    std::string global_scale;
    std::string device = "auto";
    std::string out;
    std::string cache_dir;
    bool verify = false;
};

// Where the bytes come from.
struct Path {
    std::optional<Device> device;  // nothing: the CPU reference
    std::string reason;            // why not a GPU, when that was not asked for
};

Names device_names() { return {"auto", "cpu", "gpu"}; }

Result<Path> choose_path(const std::string& device) {
    if (device == "cpu") return Path{};
    auto opened = open_first_device();
    if (opened) return Path{std::move(*opened), {}};
    if (device == "auto") return Path{std::nullopt, opened.error().message};
    Error error = opened.error();
    error.message += " (--device cpu computes the same bytes)";
    return error;
}

// Nothing: to be chosen from the tensor, or none at all.
Result<std::optional<float>> parse_global_scale(const std::string& text, std::uint32_t scale_format) {
    if (text.empty() || text == "auto") return std::optional<float>{};
    if (scale_format == NQ_SCALE_UE8M0) {
        return usage_error(fmt::format("--global-scale '{}' does not go with ue8m0 scales, which take none", text));
    }
    const auto given = parse_float("--global-scale", text);
    if (!given) return given.error();
    if (*given <= 0) return usage_error(fmt::format("--global-scale '{}' is not a positive number or auto", text));
    return std::optional<float>(*given);
}

struct Scale {
    std::optional<float> value;
    const char* source = "none";
};

Result<Scale> choose_global_scale(std::optional<float> given, const Call& call) {
    if (call.problem.scale_format == NQ_SCALE_UE8M0) return Scale{};
    if (given) return Scale{given, "given"};
    std::vector<float> rstd;
    const auto first_pass = run_reference(call, &rstd);
    if (!first_pass) return first_pass.error();
    return Scale{automatic_global_scale(call, rstd), "auto"};
}

struct Made {
    Outputs outputs;
    double seconds = 0;   // of one launch on a GPU, or of the whole call on the CPU
    std::string gpu;      // "" for the CPU reference
    std::string verdict;  // of --verify, "" without it
    bool mismatch = false;
};

Result<Made> make_on_cpu(const QuantizeOptions& options, const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    auto outputs = run_reference(call);
    if (!outputs) return outputs.error();
    Made made;
    made.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    made.outputs = std::move(*outputs);
    if (options.verify) made.verdict = "nothing to compare: the CPU reference made these bytes";
    return made;
}

Result<Made> make_on_gpu(const QuantizeOptions& options, Device& device, const Call& call) {
    const auto context = create_context(options.cache_dir);
    if (!context) return context.error();
    auto outputs = run_on_gpu(device, context->get(), call, true);
    if (!outputs) return outputs.error();
    Made made;
    made.seconds = outputs->seconds;
    made.gpu = device.facts().name;
    made.outputs = std::move(*outputs);
    if (options.verify) {
        const auto reference = run_reference(call);
        if (!reference) return reference.error();
        const auto found = difference(*reference, made.outputs);
        made.mismatch = found.has_value();
        made.verdict = found ? "MISMATCH: " + *found : "equal to the CPU reference, byte for byte";
    }
    return made;
}

void say_cpu(std::string_view why, const std::string& reason) {
    fmt::print(stderr, "normquant: {}, computing on the CPU: {}\n", why, reason);
}

Result<Made> make_outputs(const QuantizeOptions& options, const Call& call) {
    auto path = choose_path(options.device);
    if (!path) return path.error();
    if (!path->device) {
        if (!path->reason.empty()) say_cpu("no GPU", path->reason);
        return make_on_cpu(options, call);
    }
    auto made = make_on_gpu(options, *path->device, call);
    // A device or an installation that cannot run the kernel; any other failure is one.
    if (made || options.device != "auto" ||
        (made.error().status != NQ_ERR_UNSUPPORTED_DEVICE && made.error().status != NQ_ERR_NVRTC_MISSING)) {
        return made;
    }
    say_cpu("no kernel for the GPU", made.error().message);
    return make_on_cpu(options, call);
}

Json describe_source(const TensorSource& source) {
    Json json = {{"file", source.file}, {"shape", source.tensor.shape}, {"stored_as", source.tensor.stored_as}};
    if (!source.name.empty()) json["tensor"] = source.name;
    return json;
}

std::string label(const Json& source) {
    const std::string tensor = source.contains("tensor") ? ":" + source["tensor"].get<std::string>() : "";
    return fmt::format("{}{}  {} {}", source["file"].get<std::string>(), tensor, source["shape"].dump(),
                       source["stored_as"].get<std::string>());
}

Result<Json> write_outputs(const std::string& directory, const Call& call, const Outputs& outputs) {
    const auto rows = static_cast<std::uint64_t>(call.rows);
    const std::uint64_t blocks = call.problem.hidden / call.problem.block_size;
    const std::vector<std::uint64_t> scale_shape = call.problem.scale_layout == NQ_LAYOUT_LINEAR
                                                       ? std::vector<std::uint64_t>{rows, blocks}
                                                       : std::vector<std::uint64_t>{outputs.scales.size()};
    const std::string fp4 = directory + "/fp4.npy";
    const std::string scales = directory + "/scales.npy";
    const auto codes_written = write_file(fp4, npy_uint8_header({rows, call.problem.hidden / 2}), outputs.fp4);
    if (!codes_written) return codes_written.error();
    const auto scales_written = write_file(scales, npy_uint8_header(scale_shape), outputs.scales);
    if (!scales_written) return scales_written.error();
    return Json{{"fp4", fp4}, {"scales", scales}, {"report", directory + "/report.json"}};
}

std::string as_text(const Json& json, const std::vector<std::string>& notes) {
    const Json& problem = json["problem"];
    const Json& path = json["path"];
    const Json& quality = json["quality"];
    std::string text =
        fmt::format("normquant quantize: {} rows of {} {} -> {}, {} scales\n", problem["rows"].get<std::int64_t>(),
                    problem["hidden"].get<int>(), problem["dtype"].get<std::string>(),
                    problem["format"].get<std::string>(), problem["layout"].get<std::string>());
    const auto line = [&text](const char* key, const std::string& value) {
        text += fmt::format("  {:<14}{}\n", key, value);
    };
    line("input", label(json["input"]));
    line("weight", label(json["weight"]));
    for (const std::string& note : notes) line("note", note);
    if (!problem["global_scale"].is_null()) {
        line("global scale", fmt::format("{} ({})", problem["global_scale"].get<float>(),
                                         problem["global_scale_source"].get<std::string>()));
    }
    const double microseconds = path["seconds"].get<double>() * 1e6;
    if (path["device"] == "gpu") {
        line("path", fmt::format("GPU, {}", path["name"].get<std::string>()));
        line("time", path["gb_per_s"].is_null()
                         ? "no rows, no launch"
                         : fmt::format("{:.2f} us a launch, back to back (median of {} batches of {}), {:.0f} GB/s",
                                       microseconds, kTimedBatches, kLaunchesPerBatch, path["gb_per_s"].get<double>()));
    } else {
        line("path", "CPU reference");
        line("time", fmt::format("{:.0f} us", microseconds));
    }
    if (!json["verify"].is_null()) line("verify", json["verify"].get<std::string>());
    const auto figure = [](const Json& value) {
        return value.is_null() ? "not defined" : fmt::format("{:.4g}", value.get<double>());
    };
    line("quality", fmt::format("SNR {} dB, largest error {} of its block's maximum, share of zero codes {}",
                                figure(quality["snr_db"]), figure(quality["max_error_over_block_max"]),
                                figure(quality["zero_share"])));
    if (quality["rows_left_out"] != 0) {
        line("",
             fmt::format("without {} rows that hold NaN or infinity", quality["rows_left_out"].get<std::int64_t>()));
    }
    for (const auto& [name, file] : json["files"].items()) line("file", file.get<std::string>());
    return text;
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Result<Report> quantize(const QuantizeOptions& options) {
    // Everything that can be wrong with the options comes before work and before files.
    nq_problem problem = NQ_PROBLEM_INIT;
    const auto format = parse_format(options.format, options.block, options.scale);
    if (!format) return format.error();
    problem.block_size = format->block_size;
    problem.scale_format = format->scale_format;
    const auto layout = parse_layout("--layout", options.layout);
    if (!layout) return layout.error();
    problem.scale_layout = *layout;
    const auto eps = parse_float("--eps", options.eps);
    if (!eps) return eps.error();
    if (*eps < 0) return usage_error(fmt::format("--eps '{}' is negative: 0 or more is accepted", options.eps));
    std::optional<std::uint32_t> dtype;
    if (!options.dtype.empty()) {
        const auto parsed = parse_dtype("--dtype", options.dtype);
        if (!parsed) return parsed.error();
        dtype = *parsed;
    }
    const auto given_scale = parse_global_scale(options.global_scale, problem.scale_format);
    if (!given_scale) return given_scale.error();
    if (const Outcome valid = one_of("--device", options.device, device_names()); !valid) return valid.error();
    if (const Outcome possible = check_output_dir(options.out); !possible) return possible.error();

    auto input = load_tensor(options.input);
    if (!input) return input.error();
    auto weight = load_tensor(options.weight);
    if (!weight) return weight.error();
    Json json = {{"command", "quantize"}, {"input", describe_source(*input)}, {"weight", describe_source(*weight)}};
    const auto inputs = make_inputs(std::move(*input), std::move(*weight), dtype);
    if (!inputs) return inputs.error();
    problem.hidden = inputs->hidden;
    problem.dtype = inputs->dtype;
    problem.weight_dtype = inputs->weight_dtype;
    if (const Outcome valid = check(nq_problem_check(&problem)); !valid) return valid.error();

    Call call{problem, inputs->rows, *eps, std::nullopt, &inputs->x, &inputs->weight};
    const auto global_scale = choose_global_scale(*given_scale, call);
    if (!global_scale) return global_scale.error();
    call.global_scale = global_scale->value;

    const auto made = make_outputs(options, call);
    if (!made) return made.error();
    if (const Outcome created = create_output_dir(options.out); !created) return created.error();
    const Quality quality = measure_quality(call, made->outputs);
    const auto files = write_outputs(options.out, call, made->outputs);
    if (!files) return files.error();

    json["notes"] = inputs->notes;
    json["problem"] = {{"rows", call.rows},
                       {"hidden", problem.hidden},
                       {"dtype", dtype_name(problem.dtype)},
                       {"weight_dtype", dtype_name(problem.weight_dtype)},
                       {"format", format_name(problem)},
                       {"block", problem.block_size},
                       {"scale", scale_name(problem.scale_format)},
                       {"layout", layout_name(problem.scale_layout)},
                       {"eps", call.eps},
                       {"global_scale", call.global_scale ? Json(*call.global_scale) : Json(nullptr)},
                       {"global_scale_source", global_scale->source}};
    json["path"] = {{"device", made->gpu.empty() ? "cpu" : "gpu"},
                    {"name", made->gpu.empty() ? "CPU reference" : made->gpu},
                    {"seconds", made->seconds}};
    if (!made->gpu.empty()) {
        json["path"]["gb_per_s"] =
            finite_or_null(static_cast<double>(traffic_bytes(call, made->outputs)) / made->seconds * 1e-9);
    }
    json["verify"] = options.verify ? Json(made->verdict) : Json(nullptr);
    json["quality"] = {{"snr_db", finite_or_null(quality.snr_db)},
                       {"max_error_over_block_max", finite_or_null(quality.max_block_error)},
                       {"zero_share", finite_or_null(quality.zero_share)},
                       {"rows_left_out", quality.rows_left_out}};
    json["files"] = *files;
    const std::string document = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    if (const Outcome written = write_file(options.out + "/report.json", document, {}); !written)
        return written.error();
    std::string text = as_text(json, inputs->notes);
    return Report{made->mismatch ? kFailed : kOk, std::move(json), std::move(text)};
}

}  // namespace

Command add_quantize(CLI::App& parent) {
    auto options = std::make_shared<QuantizeOptions>();
    CLI::App* app = parent.add_subcommand("quantize", "Normalize and quantize the rows of a .npy or .safetensors file");
    app->add_option("--input", options->input,
                    "FILE or FILE:TENSOR, [M, H]; [H] is one row, [batch, M, H] is flattened")
        ->required();
    app->add_option("--weight", options->weight, "FILE or FILE:TENSOR, [H]: the norm's weight")->required();
    app->add_option("--out", options->out, "Directory of the outputs, created if missing")->required();
    offer(app->add_option("--format", options->format, "nvfp4 or mxfp4")->capture_default_str(), format_names());
    offer(app->add_option("--block", options->block, "16 or 32 elements a scale, instead of the format's"), block_names());
    offer(app->add_option("--scale", options->scale, "e4m3 or ue8m0 scales, instead of the format's"), scale_names());
    offer(app->add_option("--layout", options->layout, "linear, or swizzled (128x4 tiles, as tensor cores read them)")
              ->capture_default_str(),
          layout_names());
    offer(app->add_option("--dtype", options->dtype,
                          "fp16 or bf16: what float32 is rounded to and raw 16-bit data is (default: bf16 for float32)"),
          dtype_names());
    app->add_option("--eps", options->eps, "Added to the mean square")->capture_default_str();
    app->add_option("--global-scale", options->global_scale,
                    "A positive number, or auto (the default): 448*6 / the largest |y| of the tensor; e4m3 only");
    offer(app->add_option("--device", options->device, "auto, cpu or gpu; the bytes are the same")->capture_default_str(), device_names());
    add_cache_dir(*app, options->cache_dir);
    app->add_flag("--verify", options->verify, "Compare the GPU's bytes with the CPU reference");
    app->footer(kQuantizeFooter);
    return {app, [options] { return quantize(*options); }};
}

}  // namespace nq::cli
