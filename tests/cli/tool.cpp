#include "tool.h"

#include "file_samples.h"
#include "support/temp_directory.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace nq::test {
namespace {

std::string text_of(const std::string& path) {
    const Blob bytes = read(path);
    return {bytes.begin(), bytes.end()};
}

// The settings of whoever runs the tests are not the tests'.
void clear_settings() {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text(*variable);
        if (text.starts_with("NORMQUANT_")) names.emplace_back(text.substr(0, text.find('=')));
    }
    names.insert(names.end(), {"NVRTC_APPEND_FLAGS", "NV_NVVM_VERSION"});
    for (const std::string& name : names) unsetenv(name.c_str());
}

// So that permissions bind root as anybody else, who runs the tests in many a container.
void drop_override() {
    if (geteuid() != 0) return;
    for (const int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
}

class Terminal {
public:
    Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
        if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) throw std::runtime_error("pty");
    }
    ~Terminal() { close(master_); }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    std::string device() const { return ptsname(master_); }
    void type(const std::string& text) const {
        if (write(master_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
            throw std::runtime_error("pty");
    }

private:
    int master_;
};

}  // namespace

ToolResult run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                    const std::optional<std::string>& typed) {
    const TempDirectory directory;
    const std::string out = directory / "stdout";
    const std::string err = directory / "stderr";
    std::vector<std::string> settings{"NORMQUANT_LIBCUDA=/nonexistent/libcuda.so.1", "NORMQUANT_CACHE_DIR="};
    settings.insert(settings.end(), environment.begin(), environment.end());
    std::vector<char*> argv{const_cast<char*>(NORMQUANT_TOOL)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);

    const Terminal terminal;
    if (typed) terminal.type(*typed);
    const std::string in = typed ? terminal.device() : "/dev/null";
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork");
    if (child == 0) {
        clear_settings();
        for (const std::string& setting : settings) {
            const std::size_t equals = setting.find('=');
            if (equals == std::string::npos) {
                unsetenv(setting.c_str());
            } else {
                setenv(setting.substr(0, equals).c_str(), setting.c_str() + equals + 1, 1);
            }
        }
        drop_override();
        dup2(open(in.c_str(), O_RDONLY | O_NOCTTY), STDIN_FILENO);
        dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        execv(NORMQUANT_TOOL, argv.data());
        _exit(127);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
    ToolResult result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = text_of(out);
    result.err = text_of(err);
    return result;
}

}  // namespace nq::test
