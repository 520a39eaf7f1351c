#include "tool.h"

#include "file_samples.h"
#include "support/temp_directory.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <thread>

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
    int master() const { return master_; }
    void type(const std::string& text) const {
        if (write(master_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
            throw std::runtime_error("pty");
    }

private:
    int master_;
};

int open_for_child(const std::string& path, int flags) {
    const int fd = open(path.c_str(), flags | O_NOCTTY | O_CLOEXEC, 0600);
    if (fd < 0) throw std::runtime_error("open " + path);
    return fd;
}

std::string text_until_end(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t bytes = 0; (bytes = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(bytes));
    return text;
}

// R, S and so on, of the first thread.
char state_of(pid_t process) {
    const std::string stat = text_of("/proc/" + std::to_string(process) + "/stat");
    return stat.at(stat.rfind(')') + 2);
}

// Until it sleeps, twice in a row, over a pipe of one page that holds a good part of that: it waits for its reader.
void wait_until_blocked(pid_t process, int pipe_end) {
    for (int asleep = 0; asleep < 2; std::this_thread::yield()) {
        int bytes = 0;
        pollfd state{pipe_end, POLLIN, 0};
        if (ioctl(pipe_end, FIONREAD, &bytes) != 0 || poll(&state, 1, 0) < 0) throw std::runtime_error("pipe");
        if ((state.revents & POLLHUP) != 0) throw std::runtime_error("it had not enough to say");
        asleep = bytes > 2048 && state_of(process) == 'S' ? asleep + 1 : 0;
    }
}

int exit_code_of(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Closes what it hands to the child: stdin, stdout, stderr.
pid_t start(const Invocation& invocation, const std::array<int, 3>& streams) {
    std::vector<std::string> settings{"NORMQUANT_LIBCUDA=/nonexistent/libcuda.so.1", "NORMQUANT_CACHE_DIR="};
    settings.insert(settings.end(), invocation.environment.begin(), invocation.environment.end());
    std::vector<char*> argv{const_cast<char*>(NORMQUANT_TOOL)};
    for (const std::string& argument : invocation.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    // Opened by whoever runs the tests: another user may not get at its place.
    const int program = open_for_child(NORMQUANT_TOOL, O_RDONLY);

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
        if (invocation.user && (setgroups(0, nullptr) != 0 || setgid(*invocation.user) != 0 || setuid(*invocation.user) != 0)) _exit(126);
        drop_override();
        for (int stream = 0; stream < 3; ++stream) dup2(streams[static_cast<std::size_t>(stream)], stream);
        fexecve(program, argv.data(), environ);
        _exit(127);
    }
    close(program);
    for (const int stream : streams) close(stream);
    return child;
}

}  // namespace

ToolResult run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                    const std::optional<std::string>& typed) {
    return run_tool(Invocation{arguments, environment, typed});
}

ToolResult run_tool(const Invocation& invocation) {
    const TempDirectory directory;
    const std::string out = directory / "stdout";
    const std::string err = directory / "stderr";
    const Terminal terminal;
    if (invocation.typed) terminal.type(*invocation.typed);
    const std::string in = invocation.typed ? terminal.device() : "/dev/null";
    const pid_t child = start(invocation, {open_for_child(in, O_RDONLY), open_for_child(out, O_WRONLY | O_CREAT | O_TRUNC),
                                           open_for_child(err, O_WRONLY | O_CREAT | O_TRUNC)});
    ToolResult result;
    result.exit_code = exit_code_of(child);
    result.out = text_of(out);
    result.err = text_of(err);
    return result;
}

ToolResult run_tool_on_terminal(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
    const Terminal terminal;
    const winsize size{24, 80, 0, 0};
    if (ioctl(terminal.master(), TIOCSWINSZ, &size) != 0) throw std::runtime_error("TIOCSWINSZ");
    const std::string device = terminal.device();
    const pid_t child = start({arguments, environment}, {open_for_child(device, O_RDONLY), open_for_child(device, O_WRONLY),
                                                         open_for_child(device, O_WRONLY)});
    ToolResult result;
    result.out = text_until_end(terminal.master());  // EIO once nobody has the other side any more
    result.exit_code = exit_code_of(child);
    return result;
}

ToolResult meet_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, const std::string& text,
                     const std::function<void(pid_t)>& then) {
    const TempDirectory directory;
    const std::string out = directory / "stdout";
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0 || fcntl(pipe_ends[1], F_SETPIPE_SZ, 4096) < 0) throw std::runtime_error("pipe");
    const pid_t child = start({arguments, environment}, {open_for_child("/dev/null", O_RDONLY),
                                                         open_for_child(out, O_WRONLY | O_CREAT | O_TRUNC), pipe_ends[1]});
    ToolResult result;
    if (text.empty()) wait_until_blocked(child, pipe_ends[0]);
    for (char next = 0; result.err.find(text) == std::string::npos; result.err += next) {
        if (::read(pipe_ends[0], &next, 1) == 1) continue;
        exit_code_of(child);
        throw std::runtime_error("it did not say '" + text + "', but: " + result.err);
    }
    then(child);
    result.err += text_until_end(pipe_ends[0]);
    close(pipe_ends[0]);
    result.exit_code = exit_code_of(child);
    result.out = text_of(out);
    return result;
}

}  // namespace nq::test
