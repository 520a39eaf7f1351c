// The text of the calling thread's last failure, and the firewall that keeps exceptions from crossing into C.
#pragma once

#include "support/result.h"

#include <exception>
#include <new>
#include <string>

namespace nq {

struct LastError {
    std::string message;
    std::string detail;
};

// The C API's one piece of state outside its handles: per thread, as errno is. Made by a thread's first failure: making it allocates,
// and takes a lock, to have it destroyed with the thread.
LastError& last_error();
// nullptr for a thread that has had no failure yet.
LastError* last_error_if_any();

// Runs the body of a C function, which returns an Outcome; nothing of an earlier call shows afterwards.
template <class Body>
nq_status guarded(Body body) noexcept {
    if (LastError* last = last_error_if_any()) {
        last->message.clear();
        last->detail.clear();
    }
    try {
        Outcome outcome = body();
        if (outcome) return NQ_OK;
        Error error = std::move(outcome).error();
        LastError& last = last_error();
        last.message = std::move(error.message);
        last.detail = std::move(error.detail);
        return error.status;
    } catch (const std::bad_alloc&) {
        last_error().message = "out of memory";  // short enough to need none
        return NQ_ERR_OUT_OF_MEMORY;
    } catch (const std::exception& exception) {
        try {
            last_error().message = std::string("unexpected exception: ") + exception.what();
        } catch (...) {
            last_error().message = "internal error";
        }
        return NQ_ERR_INTERNAL;
    } catch (...) {
        last_error().message = "internal error";
        return NQ_ERR_INTERNAL;
    }
}

}  // namespace nq
