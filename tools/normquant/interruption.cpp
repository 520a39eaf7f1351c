#include "interruption.h"

namespace nq::cli {
namespace {

volatile std::sig_atomic_t signal_came = 0;

void on_signal(int) { signal_came = 1; }

}  // namespace

Interruption::Interruption() {
    signal_came = 0;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    ::sigaction(SIGINT, &action, &interrupt_);
    ::sigaction(SIGTERM, &action, &terminate_);
}

Interruption::~Interruption() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
}

bool Interruption::requested() { return signal_came != 0; }

}  // namespace nq::cli
