#include "runtime/dump.h"

#include "jit/embedded.h"
#include "runtime/context.h"
#include "support/file.h"
#include "support/hex.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace nq {
namespace {

// Whole or not at all: ranks that share the directory write the same files.
Outcome put(const std::string& path, std::string_view bytes) {
    const FileOps& files = system_files();
    const std::string temporary = path + "." + unique_name();
    if (Outcome written = write_new_file(files, temporary, bytes, 0644, Durability::none); !written) return written;
    if (files.rename(temporary.c_str(), path.c_str()) == 0) return Unit{};
    const int error = errno;
    files.unlink(temporary.c_str());
    return io_error("rename", path, error);
}

Outcome put_headers(const std::string& directory) {
    for (const EmbeddedHeader& header : embedded_headers()) {
        const std::string path = directory + "/" + header.name;
        if (auto made = make_directories(system_files(), path.substr(0, path.rfind('/')), 0755); !made) return made.error();
        if (Outcome written = put(path, header.text); !written) return written;
    }
    return Unit{};
}

std::string description(const CubinRequest& request, const Nvrtc& nvrtc, const Result<Compiled>& compiled,
                        const std::string& include) {
    const nlohmann::ordered_json object = {
        {"key", hex(request.key)},
        {"problem", request.problem},
        {"plan", canonical_text(request.plan)},
        {"arch", request.arch.name()},
        {"options", compile_options(request.arch, nvrtc.version)},
        {"include", include},
        {"nvrtc", text(nvrtc.version)},
        {"nvrtc_path", nvrtc.path},
        {"error", compiled ? nlohmann::ordered_json() : nlohmann::ordered_json(compiled.error().message)},
    };
    return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Outcome put_all(const std::string& directory, const CubinRequest& request, const Nvrtc& nvrtc, const Result<Compiled>& compiled) {
    const std::string base = directory + "/" + hex(request.key), include = std::string("include-") + embedded_digest();
    if (Outcome headers = put_headers(directory + "/" + include); !headers) return headers;
    std::vector<std::pair<const char*, std::string_view>> parts;
    const std::string text = description(request, nvrtc, compiled, include);
    parts.emplace_back(".cu", request.source);
    parts.emplace_back(".json", text);
    parts.emplace_back(".log", compiled ? compiled->log : compiled.error().detail);
    if (compiled) {
        parts.emplace_back(".ptx", compiled->ptx);
        parts.emplace_back(".cubin", std::string_view(reinterpret_cast<const char*>(compiled->cubin.data()), compiled->cubin.size()));
    }
    for (const auto& [extension, bytes] : parts) {
        if (Outcome written = put(base + extension, bytes); !written) return written;
    }
    return Unit{};
}

}  // namespace

void dump(Context& context, const CubinRequest& request, const Nvrtc& nvrtc, const Result<Compiled>& compiled) {
    const std::string& directory = context.config().dump_dir;
    const Outcome written = put_all(directory, request, nvrtc, compiled);
    if (!written && !context.process().dump_failed.exchange(true))
        context.log().warn(fmt::format("NORMQUANT_DUMP_DIR: not dumped: {}", written.error().message));
}

}  // namespace nq
