#include "jit/compile.h"

#include "jit/embedded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

namespace nq {
namespace {

constexpr std::size_t kMaxLogBytes = 64 << 10;

struct GatedOption {
    NvrtcVersion since;
    const char* option;
};
constexpr GatedOption kGatedOptions[] = {
    // NVRTC's own cache hides the log, and looking for it would initialize the driver in a process that only compiles.
    {{12, 9}, "--no-cache"},
    // Leaves out built-in declarations that no kernel here uses: about a tenth of the compile time.
    {{13, 0}, "--minimal"},
};

// An nvrtcProgram, destroyed on every path.
class Program {
public:
    explicit Program(const Nvrtc& nvrtc) : nvrtc_(nvrtc) {}
    ~Program() {
        if (program_ != nullptr) nvrtc_.nvrtcDestroyProgram(&program_);
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    nvrtcResult create(const std::string& source) {
        std::vector<const char*> names, texts;
        for (const EmbeddedHeader& header : embedded_headers()) {
            names.push_back(header.name);
            texts.push_back(header.text);
        }
        return nvrtc_.nvrtcCreateProgram(&program_, source.c_str(), "normquant_kernel.cu",
                                         static_cast<int>(texts.size()), texts.data(), names.data());
    }

    nvrtcResult compile(const std::vector<std::string>& options) {
        std::vector<const char*> arguments;
        for (const std::string& option : options) arguments.push_back(option.c_str());
        return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(arguments.size()), arguments.data());
    }

    // "" when there is none. NVRTC ends it with a NUL, and it can be very long.
    std::string log() const {
        std::string log = text(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog);
        if (log.size() > kMaxLogBytes) {
            const std::size_t whole = log.size();
            log.resize(kMaxLogBytes);
            log += fmt::format("\n[first {} of {} bytes]", kMaxLogBytes, whole);
        }
        return log;
    }

    std::string ptx() const { return text(nvrtc_.nvrtcGetPTXSize, nvrtc_.nvrtcGetPTX); }

    nvrtcResult cubin(std::vector<unsigned char>& bytes) const {
        std::size_t size = 0;
        if (const nvrtcResult result = nvrtc_.nvrtcGetCUBINSize(program_, &size); result != NVRTC_SUCCESS)
            return result;
        bytes.resize(size);
        return size == 0 ? NVRTC_SUCCESS : nvrtc_.nvrtcGetCUBIN(program_, reinterpret_cast<char*>(bytes.data()));
    }

private:
    template <class Size, class Get>
    std::string text(Size size_of, Get get) const {
        std::size_t size = 0;
        if (size_of(program_, &size) != NVRTC_SUCCESS || size == 0) return "";
        std::string bytes(size, '\0');
        if (get(program_, bytes.data()) != NVRTC_SUCCESS) return "";
        while (!bytes.empty() && (bytes.back() == '\0' || bytes.back() == '\n')) bytes.pop_back();
        return bytes;
    }

    const Nvrtc& nvrtc_;
    nvrtcProgram program_ = nullptr;
};

}  // namespace

std::vector<std::string> base_options(const Arch& arch) {
    return {"--gpu-architecture=" + arch.name(), "--std=c++17", "--fmad=false"};
}

std::vector<std::string> gated_options(NvrtcVersion version) {
    std::vector<std::string> options;
    for (const GatedOption& gated : kGatedOptions) {
        if (version >= gated.since) options.emplace_back(gated.option);
    }
    return options;
}

std::string gated_options_rule() {
    std::string rule;
    for (const GatedOption& gated : kGatedOptions) rule += fmt::format("{} {};", text(gated.since), gated.option);
    return rule;
}

std::vector<std::string> compile_options(const Arch& arch, NvrtcVersion version) {
    std::vector<std::string> options = base_options(arch);
    for (std::string& option : gated_options(version)) options.push_back(std::move(option));
    return options;
}

Result<Compiled> compile(const Nvrtc& nvrtc, const std::string& source, const Arch& arch, const CompileExtras& extras) {
    // NVRTC itself would only say "invalid value for --gpu-architecture".
    if (Outcome supported = nvrtc.check(arch); !supported) return std::move(supported).error();

    std::vector<std::string> options = compile_options(arch, nvrtc.version);
    options.insert(options.end(), extras.options.begin(), extras.options.end());
    const auto failed = [&](const std::string& step, nvrtcResult result, std::string log) {
        return Error{
            result == NVRTC_ERROR_OUT_OF_MEMORY ? NQ_ERR_OUT_OF_MEMORY : NQ_ERR_COMPILE_FAILED,
            fmt::format("{} for {}: {} (NVRTC {} from {}, options {})", step, arch.name(),
                        nvrtc.nvrtcGetErrorString(result), text(nvrtc.version), nvrtc.path, fmt::join(options, " ")),
            std::move(log)};
    };

    const auto start = std::chrono::steady_clock::now();
    Program program(nvrtc);
    if (const nvrtcResult result = program.create(source); result != NVRTC_SUCCESS)
        return failed("nvrtcCreateProgram", result, "");
    if (const nvrtcResult result = program.compile(options); result != NVRTC_SUCCESS) {
        Error error = failed("nvrtcCompileProgram", result, program.log());
        // By its name in the log, too: the code is newer than the oldest NVRTC.
        if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE ||
            error.detail.find("libnvrtc-builtins") != std::string::npos) {
            error.status = NQ_ERR_NVRTC_MISSING;
            error.message += ". " + nvrtc.explain_builtins();
        }
        return error;
    }

    Compiled compiled;
    compiled.log = program.log();
    if (const nvrtcResult result = program.cubin(compiled.cubin); result != NVRTC_SUCCESS) {
        return failed("nvrtcGetCUBIN", result, compiled.log);
    }
    // Success with nothing to load: what NVRTC answers when asked for a virtual architecture.
    if (compiled.cubin.empty()) {
        return Error{NQ_ERR_COMPILE_FAILED,
                     fmt::format("NVRTC {} from {} made no cubin for {}", text(nvrtc.version), nvrtc.path, arch.name()),
                     std::move(compiled.log)};
    }
    if (extras.ptx) compiled.ptx = program.ptx();
    compiled.nanoseconds = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count());
    return compiled;
}

}  // namespace nq
