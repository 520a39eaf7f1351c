#include "model_config.h"

#include "errors.h"
#include "metadata.h"

#include <fmt/core.h>

#include <algorithm>

namespace nq::cli {
namespace {

// What the type of a model implies and no field of its config says.
struct Family {
    const char* type;
    bool head_norms = false;           // q_norm and k_norm over each head
    std::uint64_t head_dim = 0;        // where the config has none; 0: hidden_size / num_attention_heads
    bool weight_bias_one = false;      // weights are stored as w - 1
};

constexpr Family kFamilies[] = {
    {"llama"},       {"mistral"},     {"mixtral"}, {"qwen2"},    {"qwen2_moe"}, {"phi3"},    {"gpt_oss"},
    {"deepseek_v2"}, {"deepseek_v3"}, {"kimi_k2"}, {"granite"},
    {"qwen3", true, 128},
    {"qwen3_moe", true},
    {"qwen3_next", true, 256, true},
    {"gemma", false, 0, true},
    {"gemma2", false, 0, true},
    {"gemma3_text", true, 256, true},
};

// These have a field rms_norm_eps, or none, and compute a LayerNorm all the same.
constexpr const char* kLayerNorm[] = {"phimoe"};

constexpr const char* kNestedConfigs[] = {"text_config", "language_config", "llm_config"};

const Family* family_of(const std::string& type) {
    const auto* family = std::ranges::find(kFamilies, type, &Family::type);
    return family != std::end(kFamilies) ? family : nullptr;
}

// The language model's fields, which a multimodal model nests; what they lack, the outer ones say.
class Config {
public:
    explicit Config(const Json& document) : outer_(document), inner_(document) {
        for (const char* name : kNestedConfigs) {
            const auto nested = document.find(name);
            if (nested == document.end() || !nested->is_object()) continue;
            inner_ = *nested;
            break;
        }
    }

    // null where neither has it.
    const Json& find(const char* field) const {
        static const Json kNone;
        for (const Json* place : {&inner_, &outer_}) {
            const auto value = place->find(field);
            if (value != place->end() && !value->is_null()) return *value;
        }
        return kNone;
    }
    bool has(const char* field) const { return !find(field).is_null(); }
    std::string text(const char* field) const {
        const Json& value = find(field);
        return value.is_string() ? value.get<std::string>() : "";
    }

    // 0 where there is none.
    Result<std::uint64_t> count(const char* field) const {
        const Json& value = find(field);
        if (value.is_null()) return std::uint64_t{0};
        if (value.is_number_unsigned()) return value.get<std::uint64_t>();
        return usage_error(fmt::format("{} is {}: a whole number is accepted", field, value.dump()));
    }

private:
    const Json& outer_;
    Json inner_;
};

void take_dtype(Model& model, const Config& config) {
    const char* const field = config.has("dtype") ? "dtype" : "torch_dtype";
    const std::string name = config.text(field);
    if (name == "bfloat16") model.dtype = "bf16";
    else if (name == "float16") model.dtype = "fp16";
    else if (!name.empty() && name != "auto") model.other_dtype = fmt::format("{} is '{}'", field, name);
}

Outcome check_is_rms_norm(const Config& config, const std::string& type) {
    const bool other = std::ranges::count(kLayerNorm, type) != 0;
    if (!other && (family_of(type) != nullptr || config.has("rms_norm_eps"))) return Unit{};
    return usage_error(fmt::format("model_type '{}' {}: it does not tell of an RMSNorm. Name the row lengths with --hidden", type,
                                   other ? "computes a LayerNorm" : "is not known and has no rms_norm_eps"));
}

// q_norm and k_norm.
Result<std::uint64_t> head_dim(const Config& config, const Family& family, std::uint64_t hidden) {
    auto said = config.count("head_dim");
    if (!said || *said != 0) return said;
    if (family.head_dim != 0) return family.head_dim;
    auto heads = config.count("num_attention_heads");
    if (!heads) return heads;
    return *heads != 0 ? hidden / *heads : 0;
}

}  // namespace

Result<Model> parse_model_config(std::string_view text) {
    const Json document = parse_metadata(text);
    if (!document.is_object()) return usage_error("it is not a JSON object");
    const Config config(document);
    Model model;
    model.type = config.text("model_type");
    if (const Outcome rms = check_is_rms_norm(config, model.type); !rms) return rms.error();
    take_dtype(model, config);

    const auto hidden = config.count("hidden_size");
    if (!hidden) return hidden.error();
    if (*hidden == 0) return usage_error("it has no hidden_size");
    model.norms.push_back({"hidden_size", *hidden, true});
    for (const char* field : {"q_lora_rank", "kv_lora_rank"}) {
        const auto rank = config.count(field);
        if (!rank) return rank.error();
        if (*rank != 0) model.norms.push_back({field, *rank});
    }
    const Family* family = family_of(model.type);
    model.known = family != nullptr;
    if (family == nullptr) return model;
    model.weight_bias_one = family->weight_bias_one;
    if (family->head_norms) {
        const auto length = head_dim(config, *family, *hidden);
        if (!length) return length.error();
        if (*length != 0) model.norms.push_back({"head_dim", *length});
    }
    return model;
}

}  // namespace nq::cli
