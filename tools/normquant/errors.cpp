#include "errors.h"

namespace nq::cli {

Error usage_error(std::string message) { return {NQ_ERR_INVALID_ARGUMENT, std::move(message), {}}; }

Error failure(std::string message) { return {NQ_ERR_INTERNAL, std::move(message), {}}; }

ExitCode exit_code_of(const Error& error) {
    switch (error.status) {
        case NQ_ERR_INVALID_ARGUMENT:
        case NQ_ERR_MISALIGNED:
        case NQ_ERR_UNSUPPORTED_PROBLEM:
            return kUsage;
        default:
            return kFailed;
    }
}

}  // namespace nq::cli
