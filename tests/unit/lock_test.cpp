#include "cache/lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "unit/cache_fixture.h"

namespace fs = std::filesystem;
using nq::FileLock;
using nq::FileOps;
using nq::system_files;
using namespace nq::test;
using Status = FileLock::Status;

namespace {

FileLock acquire(const std::string& path, const FileOps& files = system_files()) {
    return FileLock::try_acquire(files, path, 0600);
}

std::string this_process() { return "process " + std::to_string(getpid()) + " on "; }

}  // namespace

TEST_CASE("one holder at a time, who is named; the file goes with the lock") {
    const TempDirectory directory;
    const std::string path = directory / "lock";
    {
        const FileLock held = acquire(path);
        REQUIRE(held.status() == Status::held);
        for (int i = 0; i < 3; ++i) {
            const FileLock second = acquire(path);
            CHECK(second.status() == Status::busy);
            CHECK(second.holder().starts_with(this_process()));
        }
        // A process that merely looks at the file and closes it takes nothing away, as it would from a classic lock.
        { std::FILE* look = std::fopen(path.c_str(), "r"); REQUIRE(look); std::fclose(look); }
        CHECK(acquire(path).status() == Status::busy);
        Child other([&] { return acquire(path).status() == Status::busy; });
        CHECK(other.succeeded());
    }
    CHECK_FALSE(fs::exists(path));
    CHECK(acquire(path).status() == Status::held);
    CHECK(acquire(directory / "other").status() == Status::held);
}

TEST_CASE("a holder that is killed holds nothing") {
    const TempDirectory directory;
    const std::string path = directory / "lock";
    Pipe ready;
    Child holder([&] {
        const FileLock held = acquire(path);
        const bool told = ready.put('x');
        sleep(600);
        return told;
    });
    REQUIRE(ready.get<char>() == 'x');
    const FileLock waiting = acquire(path);
    CHECK(waiting.status() == Status::busy);
    CHECK(waiting.holder().starts_with("process " + std::to_string(holder.pid()) + " on "));
    holder.kill_now();
    CHECK(fs::exists(path));
    const FileLock after = acquire(path);
    CHECK(after.status() == Status::held);
    CHECK(acquire(path).holder().starts_with(this_process()));
}

TEST_CASE("a program that the holder has started does not keep the lock when the holder is killed") {
    const auto after_the_holder = [](const FileOps& files) {
        const TempDirectory directory;
        const std::string path = directory / "lock";
        Pipe started;
        Child holder([&] {
            const FileLock held = acquire(path, files);
            if (held.status() != Status::held) return false;
            const pid_t program = fork();
            if (program == 0) {
                execl("/bin/sleep", "sleep", "600", static_cast<char*>(nullptr));
                _exit(127);
            }
            const bool told = started.put(program);
            started.close_writer();
            sleep(600);
            return told;
        });
        const Orphan program(started.get<pid_t>());
        started.wait_for_end();  // the program's end of the pipe was closed by its exec, as the lock should have been
        CHECK(acquire(path).status() == Status::busy);
        holder.kill_now();
        std::string name;
        std::ifstream("/proc/" + std::to_string(program.pid()) + "/comm") >> name;
        CHECK(name == "sleep");  // it lives
        return acquire(path).status();
    };
    CHECK(after_the_holder(system_files()) == Status::held);
    // The same with a descriptor that an exec leaves open, to see that this would be noticed.
    FileOps leaking = system_files();
    leaking.open = [](const char* path, int flags, mode_t mode) {
        return system_files().open(path, flags & ~O_CLOEXEC, mode);
    };
    CHECK(after_the_holder(leaking) == Status::busy);
}

TEST_CASE("a file that was removed while somebody waited for it is not the lock any more") {
    const TempDirectory directory;
    static std::string path;
    path = directory / "lock";
    static int opened;
    opened = 0;
    FileOps files = system_files();
    files.lock = [](int fd) {
        // Between the open and the lock, the holder ends.
        if (opened++ == 0) fs::remove(path);
        return system_files().lock(fd);
    };
    const FileLock held = acquire(path, files);
    REQUIRE(held.status() == Status::held);
    CHECK(opened == 2);
    CHECK(fs::exists(path));
    CHECK(acquire(path).status() == Status::busy);
}

TEST_CASE("what a lock file holds is shown only if it is plain text") {
    const TempDirectory directory;
    const std::string path = directory / "lock";
    const FileLock held = acquire(path);
    for (const std::string& text : {std::string(), std::string("a\nb"), std::string("\x1b[31m"), std::string(3, '\0')}) {
        std::FILE* file = std::fopen(path.c_str(), "w");
        REQUIRE(file);
        std::fwrite(text.data(), 1, text.size(), file);
        std::fclose(file);
        CHECK(acquire(path).holder() == "another process");
    }
    std::FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file);
    std::fputs(std::string(100000, 'x').c_str(), file);
    std::fclose(file);
    CHECK(acquire(path).holder() == std::string(128, 'x'));
}

TEST_CASE("where there can be no lock, that is said and nothing hangs") {
    const TempDirectory directory;
    const std::string path = directory / "lock";
    SECTION("no directory") { CHECK(acquire(directory / "absent/lock").status() == Status::unavailable); }
    SECTION("a FIFO") {
        REQUIRE(mkfifo(path.c_str(), 0600) == 0);
        CHECK(acquire(path).status() == Status::unavailable);
    }
    SECTION("a directory") {
        fs::create_directory(path);
        CHECK(acquire(path).status() == Status::unavailable);
    }
    SECTION("a symlink") {
        fs::create_symlink(directory / "elsewhere", path);
        CHECK(acquire(path).status() == Status::unavailable);
        CHECK_FALSE(fs::exists(directory / "elsewhere"));
    }
    SECTION("each call fails with each error") {
        script = {};
        REQUIRE(acquire(path, scripted_files()).status() == Status::held);
        const auto calls = std::exchange(script, {}).calls;
        CHECK(calls == std::vector<std::string>{"open", "lock", "fstat", "ftruncate", "write", "unlink", "close"});
        for (std::size_t at = 0; at < calls.size(); ++at) {
            for (const int error : {ENOLCK, ENOSPC, EIO, EROFS, EACCES, EMFILE, ESTALE, EINTR, EINVAL, ENOSYS}) {
                INFO(calls[at] << ": " << std::strerror(error));
                script = {};
                script.fail_from = at;
                script.error = error;
                const bool needed = at < 3;
                const bool retried = error == EINTR && at < 2;
                const bool taken = calls[at] == "lock" && error == EACCES;  // how some systems say "busy"
                {
                    const FileLock attempt = acquire(path, scripted_files());
                    CHECK(attempt.status() ==
                          (taken ? Status::busy : needed && !retried ? Status::unavailable : Status::held));
                    if (attempt.status() == Status::unavailable)
                        CHECK(attempt.fault().find(std::strerror(error)) != std::string::npos);
                }
                script = {};
                CHECK(acquire(path).status() == Status::held);
            }
        }
    }
}
