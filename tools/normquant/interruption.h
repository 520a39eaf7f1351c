// A first Ctrl-C or SIGTERM is a request to stop; a second one ends the program as ever.
#pragma once

#include <csignal>

namespace nq::cli {

class Interruption {
public:
    Interruption();
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    static bool requested();

private:
    struct sigaction interrupt_ = {};
    struct sigaction terminate_ = {};
};

}  // namespace nq::cli
