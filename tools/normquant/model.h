// --model: a config.json, a .safetensors file, or a folder with either or both.
#pragma once

#include "model_config.h"

#include <string>

namespace nq::cli {

// Where weights are at hand, their shapes and types are what counts; the config says the rest.
Result<Model> read_model(const std::string& path);

}  // namespace nq::cli
