#include "support/fork_mark.h"

#include <unistd.h>

namespace nq {
namespace {

constexpr std::size_t kBytes = sizeof(int);  // of the page, to which the kernel rounds up

// Some emulators accept every advice and follow none: then one that does not exist is accepted as well.
bool wipes_on_fork(ForkMark::Advise advise, void* page) {
    return advise(page, kBytes, -1) != 0 && advise(page, kBytes, MADV_WIPEONFORK) == 0;
}

}  // namespace

ForkMark::ForkMark(Advise advise) : process_(::getpid()) {
    void* const page = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (!wipes_on_fork(advise, page)) {
        ::munmap(page, kBytes);
        return;
    }
    *static_cast<int*>(page) = 1;
    page_ = static_cast<const int*>(page);
}

ForkMark::~ForkMark() {
    if (page_ != nullptr) ::munmap(const_cast<int*>(page_), kBytes);
}

bool ForkMark::is_running() const { return process_ == ::getpid(); }

}  // namespace nq
