#include "counted_calls.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>

namespace nq::test {
namespace {

thread_local bool counting = false;
thread_local Counts counts;

void count(unsigned Counts::*what) {
    if (counting) ++(counts.*what);
}

// Calls the library's own of this name. `known` remembers where that is; constant-initialized, as the first callers
// come before any constructor, and with no guard, which would be counted.
template <class Value, class... Arguments>
Value pass_on(std::atomic<void*>& known, const char* name, Arguments... arguments) {
    void* function = known.load(std::memory_order_relaxed);
    if (function == nullptr) {
        function = ::dlsym(RTLD_NEXT, name);
        known.store(function, std::memory_order_relaxed);
    }
    return reinterpret_cast<Value (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

void start_counting() {
    counts = {};
    counting = true;
}

Counts stop_counting() {
    counting = false;
    return counts;
}

}  // namespace nq::test

using nq::test::count;
using nq::test::Counts;
using nq::test::pass_on;

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) noexcept {
    count(&Counts::allocations);
    return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) noexcept {
    count(&Counts::allocations);
    return __libc_calloc(number, bytes);
}
void* realloc(void* memory, size_t bytes) noexcept {
    count(&Counts::allocations);
    return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
    count(&Counts::allocations);
    return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
    count(&Counts::allocations);
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
    count(&Counts::allocations);
    *memory = __libc_memalign(alignment, bytes);
    return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) noexcept {
    count(&Counts::frees);
    __libc_free(memory);
}

#define LOCK(specifier, name, parameters, ...)              \
    int name parameters specifier {                         \
        static constinit std::atomic<void*> known{nullptr}; \
        count(&Counts::locks);                              \
        return pass_on<int>(known, #name, __VA_ARGS__);     \
    }
LOCK(noexcept, pthread_mutex_lock, (pthread_mutex_t * mutex), mutex)
LOCK(noexcept, pthread_mutex_trylock, (pthread_mutex_t * mutex), mutex)
LOCK(noexcept, pthread_mutex_timedlock, (pthread_mutex_t * mutex, const timespec* until), mutex, until)
LOCK(noexcept, pthread_mutex_clocklock, (pthread_mutex_t * mutex, clockid_t clock, const timespec* until), mutex, clock,
     until)
LOCK(noexcept, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), lock)
LOCK(noexcept, pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock), lock)
LOCK(noexcept, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), lock)
LOCK(noexcept, pthread_rwlock_trywrlock, (pthread_rwlock_t * lock), lock)
LOCK(noexcept, pthread_spin_lock, (pthread_spinlock_t * lock), lock)
LOCK(noexcept, pthread_spin_trylock, (pthread_spinlock_t * lock), lock)
LOCK(, pthread_once, (pthread_once_t * once, void (*body)()), once, body)
LOCK(, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t* mutex), condition, mutex)
LOCK(, pthread_cond_timedwait, (pthread_cond_t * condition, pthread_mutex_t* mutex, const timespec* until), condition,
     mutex, until)
LOCK(, pthread_cond_clockwait,
     (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until), condition, mutex,
     clock, until)
LOCK(noexcept, pthread_rwlock_timedrdlock, (pthread_rwlock_t * lock, const timespec* until), lock, until)
LOCK(noexcept, pthread_rwlock_timedwrlock, (pthread_rwlock_t * lock, const timespec* until), lock, until)
LOCK(noexcept, pthread_rwlock_clockrdlock, (pthread_rwlock_t * lock, clockid_t clock, const timespec* until), lock,
     clock, until)
LOCK(noexcept, pthread_rwlock_clockwrlock, (pthread_rwlock_t * lock, clockid_t clock, const timespec* until), lock,
     clock, until)
LOCK(, sem_wait, (sem_t * semaphore), semaphore)
LOCK(, sem_timedwait, (sem_t * semaphore, const timespec* until), semaphore, until)
LOCK(, sem_clockwait, (sem_t * semaphore, clockid_t clock, const timespec* until), semaphore, clock, until)
LOCK(noexcept, sem_trywait, (sem_t * semaphore), semaphore)
LOCK(, __cxa_guard_acquire, (void* guard), guard)
#undef LOCK

long syscall(long number, ...) noexcept {
    static constinit std::atomic<void*> known{nullptr};
    if (number == SYS_futex) count(&Counts::locks);
    long a[6];
    va_list list;
    va_start(list, number);
    for (long& argument : a) argument = va_arg(list, long);
    va_end(list);
    return pass_on<long>(known, "syscall", number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
