// Errors are values: Result<T> holds a T or an Error. The status is for programs, the message for people.
#pragma once

#include <normquant/normquant.h>

#include <string>
#include <utility>
#include <variant>

namespace nq {

struct Error {
    nq_status status = NQ_ERR_INTERNAL;
    std::string message;
    std::string detail = {};  // NVRTC log; empty when there is nothing to add
    int driver_result = 0;    // CUresult of the call that failed, if one did
};

template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    T& value() & { return std::get<0>(state_); }
    const T& value() const& { return std::get<0>(state_); }
    T&& value() && { return std::get<0>(std::move(state_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const& { return std::get<1>(state_); }
    Error&& error() && { return std::get<1>(std::move(state_)); }

private:
    std::variant<T, Error> state_;
};

struct Unit {};
using Outcome = Result<Unit>;

}  // namespace nq
