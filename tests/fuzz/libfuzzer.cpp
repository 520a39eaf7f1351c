#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
    nq::fuzz::accepts({bytes, size});
    return 0;
}
