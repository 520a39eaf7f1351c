// The JSON inside a cache entry. A checksum says that it is whole, not who wrote it.
#include "metadata.h"

#include "fuzz/fuzz.h"

namespace nq::fuzz {

bool accepts(Bytes input) {
    const cli::Json metadata = cli::parse_metadata(text_of(input));
    must(!metadata.is_discarded(), "there is always something to show");
    for (const char* label : {"problem", "variant", "", "a/b", "~", "~1"}) cli::request_field(metadata, label);
    // As text and as JSON, the two ways to print it.
    const std::string shown = metadata.dump(2, ' ', false, cli::Json::error_handler_t::replace);
    if (metadata.is_string()) return false;
    must(cli::Json::parse(shown) == metadata, "what is shown is what was there");
    return true;
}

std::vector<std::string> seeds() {
    return {
        R"({"request":{"problem":"op=rmsnorm hidden=4096","variant":"threads=256"},"compiler":{"nvrtc":"13.0"},"compile_ms":412.5,"registers":40})",
        R"({"request":["problem",{"problem":7}],"e":[1e308,-0.0,18446744073709551615,null,true,"\u00e9\ud83d\ude00"]})",
        R"([[[[]]],{},[{"request":{}}]])",
    };
}

}  // namespace nq::fuzz
