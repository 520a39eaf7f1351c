// The config.json of a model, which anybody may have written.
#include "model_config.h"

#include "fuzz/fuzz.h"

namespace nq::fuzz {

bool accepts(Bytes input) {
    const auto model = cli::parse_model_config(text_of(input));
    if (!model) {
        must(!model.error().message.empty(), "what is refused is explained");
        return false;
    }
    must(!model->norms.empty() && model->norms.front().on_residual, "there is a norm of the residual stream");
    for (const cli::Norm& norm : model->norms) must(norm.hidden != 0, "a norm has a length");
    must(model->dtype.empty() || model->dtype == "bf16" || model->dtype == "fp16", "rows are bf16 or fp16");
    must(model->dtype.empty() || model->other_dtype.empty(), "a config says one dtype");
    return true;
}

std::vector<std::string> seeds() {
    return {
        R"({"model_type":"llama","hidden_size":4096,"rms_norm_eps":1e-5,"torch_dtype":"bfloat16"})",
        R"({"model_type":"deepseek_v3","hidden_size":7168,"q_lora_rank":1536,"kv_lora_rank":512,"dtype":"auto"})",
        R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,"head_dim":null},"torch_dtype":"float16"})",
        R"({"model_type":"qwen3_moe","hidden_size":2048,"num_attention_heads":32})",
        R"({"model_type":"qwen2","hidden_size":896,"torch_dtype":"float32"})",
        R"({"model_type":"tomorrow","hidden_size":1,"rms_norm_eps":0})",
    };
}

}  // namespace nq::fuzz
