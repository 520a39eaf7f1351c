// Tells the process that made it from the children that it forks, without a system call where the kernel allows it.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cstddef>

namespace nq {

// A page that reads as zero in a child, however it was made: fork, _Fork or a bare clone. Where there is no such page (Linux before
// 4.14, a sandbox that refuses it), process ids are compared. A child that shares the memory of its parent, as vfork's does, counts as
// the parent.
class ForkMark {
public:
    using Advise = int (*)(void* address, std::size_t bytes, int advice);
    explicit ForkMark(Advise advise = ::madvise);
    ~ForkMark();
    ForkMark(const ForkMark&) = delete;
    ForkMark& operator=(const ForkMark&) = delete;

    pid_t process() const { return process_; }  // that made it
    bool in_process() const { return page_ != nullptr ? *page_ != 0 : is_running(); }

private:
    bool is_running() const;

    const pid_t process_;
    const volatile int* page_ = nullptr;  // the kernel clears it behind the compiler's back
};

}  // namespace nq
