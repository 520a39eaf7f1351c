// Apart from errors.cpp, so that the file parsers link without the library.
#include "errors.h"

namespace nq::cli {

Outcome check(nq_status status) {
    if (status == NQ_OK) return Unit{};
    return Error{status, nq_last_error(), nq_last_error_detail()};
}

}  // namespace nq::cli
