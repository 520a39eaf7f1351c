// What a cubin says about itself, for people. Bounds-checked; what is not there is left empty.
#pragma once

#include "support/bytes.h"

#include <string>

namespace nq {

struct CubinInfo {
    unsigned registers = 0;  // a thread of the kernel entry
    std::string toolkit;     // of the assembler: "V13.0.88"
};

CubinInfo cubin_info(ByteSpan cubin);

}  // namespace nq
