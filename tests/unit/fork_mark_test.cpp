#include "support/fork_mark.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/catch.h"

using nq::ForkMark;

namespace {

using Make = long (*)();
enum Seen { own = 10, foreign = 11 };

Seen look(const ForkMark& mark) { return mark.in_process() ? own : foreign; }

// What a child of one kind ends with. Nothing but the mark is used in it: a bare clone leaves the C library as it was.
template <class Function>
int in_child(Make make, Function function) {
    const long child = make();
    if (child == 0) ::_exit(function());
    int status = 0;
    REQUIRE(::waitpid(static_cast<pid_t>(child), &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
}

long forked() { return ::fork(); }
long cloned() { return ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr); }

int refuse(void*, std::size_t, int) { return -1; }
int accept_anything(void*, std::size_t, int) { return 0; }
int accept_and_forget(void*, std::size_t, int advice) { return advice == MADV_WIPEONFORK ? 0 : -1; }

}  // namespace

TEST_CASE("children see the mark of their parent, whichever way they were made") {
    // A page, and the two reasons to do without.
    const ForkMark::Advise advise = GENERATE(ForkMark::Advise{::madvise}, ForkMark::Advise{refuse}, ForkMark::Advise{accept_anything});
    const auto make = GENERATE(Make{forked}, Make{cloned});
    const ForkMark mark(advise);
    CHECK(mark.process() == ::getpid());
    CHECK(look(mark) == own);
    CHECK(in_child(make, [&] { return look(mark); }) == foreign);
    // Nor does it come back further down.
    CHECK(in_child(make, [&] {
              const long grandchild = make();
              if (grandchild == 0) ::_exit(look(mark));
              int status = 0;
              ::waitpid(static_cast<pid_t>(grandchild), &status, 0);
              return WEXITSTATUS(status);
          }) == foreign);
    CHECK(look(mark) == own);
}

TEST_CASE("a child's own mark is its own, and the parent's can be destroyed in it") {
    const ForkMark::Advise advise = GENERATE(ForkMark::Advise{::madvise}, ForkMark::Advise{refuse});
    auto* const mark = new ForkMark(advise);
    CHECK(in_child(forked, [&] {
              delete mark;
              return look(ForkMark(advise));
          }) == own);
    CHECK(look(*mark) == own);
    delete mark;
}

// Had the process id been asked, the child would have seen it.
TEST_CASE("the page alone is asked, where there is one") {
    const ForkMark mark(accept_and_forget);
    CHECK(in_child(forked, [&] { return look(mark); }) == own);
}
