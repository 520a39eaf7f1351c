#include "model.h"

#include "errors.h"
#include "files.h"
#include "problems.h"
#include "safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

namespace nq::cli {
namespace {

namespace fs = std::filesystem;

Error in_file(const std::string& path, Error error) {
    error.message = fmt::format("{}: {}", path, error.message);
    return error;
}

Result<Model> read_config(const std::string& path) {
    const auto file = MappedFile::open(path);
    if (!file) return in_file(path, file.error());
    const Bytes bytes = file->bytes();
    auto model = parse_model_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!model) return in_file(path, model.error());
    return model;
}

struct Tensors {
    std::vector<SafetensorsEntry> norms;  // weights of norms: one dimension
    std::set<std::string> biases;         // names of modules that have one, and so compute a LayerNorm
    std::string dtype;                    // of the first 16-bit floating-point tensor
};

// "model.layers.0.input_layernorm.weight": the module, if it is a norm's weight.
std::optional<std::string> norm_of(const SafetensorsEntry& entry) {
    constexpr std::string_view kWeight = ".weight";
    const std::string_view name = entry.name;
    if (!name.ends_with(kWeight) || entry.shape.size() != 1) return std::nullopt;
    const std::string module(name.substr(0, name.size() - kWeight.size()));
    return module.substr(module.rfind('.') + 1).find("norm") != std::string::npos ? std::optional(module) : std::nullopt;
}

Outcome add_tensors(Tensors& tensors, const std::string& path) {
    const auto file = MappedFile::open(path);
    if (!file) return in_file(path, file.error());
    const auto entries = parse_safetensors(file->bytes());  // of the file, this touches the header alone
    if (!entries) return in_file(path, entries.error());
    for (const SafetensorsEntry& entry : *entries) {
        if (norm_of(entry)) tensors.norms.push_back(entry);
        if (entry.name.ends_with(".bias")) tensors.biases.insert(entry.name.substr(0, entry.name.size() - 5));
        if (tensors.dtype.empty() && (entry.dtype == "BF16" || entry.dtype == "F16"))
            tensors.dtype = entry.dtype == "BF16" ? "bf16" : "fp16";
    }
    return Unit{};
}

// One for every length and type; its name is the first module's last part.
void take_norms(Model& model, const Tensors& tensors) {
    std::uint64_t residual = 0;  // the residual stream's length: the config's, else the longest
    for (const Norm& norm : model.norms) {
        if (norm.on_residual) residual = norm.hidden;
    }
    std::vector<Norm> norms;
    std::uint64_t longest = 0;
    std::set<std::string> refused;
    for (const SafetensorsEntry& entry : tensors.norms) {
        const std::string module = *norm_of(entry);
        const std::string name = module.substr(module.rfind('.') + 1);
        if (tensors.biases.contains(module)) {
            refused.insert(name + " has a bias: a LayerNorm");
            continue;
        }
        if (entry.dtype != "F32" && entry.dtype != "F16" && entry.dtype != "BF16") {
            refused.insert(fmt::format("{} is {}: F32, F16 and BF16 are accepted", name, entry.dtype));
            continue;
        }
        longest = std::max(longest, entry.shape[0]);
        const Norm norm{name, entry.shape[0], false, entry.dtype == "F32"};
        const bool present = std::ranges::any_of(norms, [&](const Norm& other) {
            return other.hidden == norm.hidden && other.fp32_weight == norm.fp32_weight;
        });
        if (!present) norms.push_back(norm);
    }
    for (Norm& norm : norms) norm.on_residual = norm.hidden == (residual != 0 ? residual : longest);
    std::ranges::stable_sort(norms, [](const Norm& a, const Norm& b) { return a.hidden > b.hidden; });
    for (const std::string& note : refused) model.notes.push_back("left out: " + note);
    if (!norms.empty()) model.norms = std::move(norms);
}

}  // namespace

Result<Model> read_model(const std::string& path) {
    std::error_code error;
    std::string config = path;
    std::vector<std::string> files;
    if (fs::is_directory(path, error)) {
        config = path + "/config.json";
        if (!fs::exists(config, error)) config.clear();
        for (fs::directory_iterator item(path, error), end; item != end; item.increment(error)) {
            if (item->path().extension() == ".safetensors") files.push_back(item->path().string());
        }
        if (error) return usage_error(fmt::format("--model {}: {}", path, error.message()));
        std::ranges::sort(files);
        if (config.empty() && files.empty())
            return usage_error(fmt::format("--model {}: the folder has neither a config.json nor a .safetensors file", path));
    } else if (path.ends_with(".safetensors")) {
        config.clear();
        files.push_back(path);
    }
    Model model;
    if (!config.empty()) {
        auto read = read_config(config);
        if (!read) return read;
        model = *std::move(read);
    }
    Tensors tensors;
    for (const std::string& file : files) {
        if (const Outcome added = add_tensors(tensors, file); !added) return added.error();
    }
    if (model.dtype.empty() && model.other_dtype.empty()) model.dtype = tensors.dtype;
    take_norms(model, tensors);
    if (model.norms.empty())
        return usage_error(fmt::format("--model {}: none of its tensors is the weight of a norm, such as model.norm.weight", path));
    if (!model.known) {
        model.notes.push_back(fmt::format("{}: weights are taken as they are; --weight-bias 1 if they are stored as w - 1 (Gemma){}",
                                          model.type.empty() ? "no model_type" : fmt::format("model_type '{}' is not known", model.type),
                                          tensors.norms.empty() ? ". Norms of other lengths than these: add --hidden" : ""));
    }
    return model;
}

}  // namespace nq::cli
