// The RMSNorms of a model, as its Hugging Face config.json tells them.
#pragma once

#include "support/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nq::cli {

struct Norm {
    std::string name;  // the config's field that says its length, or the tensors' name
    std::uint64_t hidden = 0;
    bool on_residual = false;  // of the residual stream: engines add the residual in the same kernel
    bool fp32_weight = false;
    friend bool operator==(const Norm&, const Norm&) = default;
};

struct Model {
    std::string type;    // model_type; "" where nothing says it
    bool known = false;  // so that head norms and the weight's bias follow from it
    std::string dtype;   // of the rows: "bf16", "fp16"; "" where nothing says it
    std::string other_dtype;  // "torch_dtype is 'float32'": the config says one that rows cannot have, and dtype is ""
    bool weight_bias_one = false;
    std::vector<Norm> norms;
    std::vector<std::string> notes;  // what was assumed, or is not covered
};

// Errors leave out the path: the caller names it.
Result<Model> parse_model_config(std::string_view text);

}  // namespace nq::cli
