#include "libraries.h"

#include "errors.h"

namespace nq::cli {

Result<ContextConfig> environment_config() {
    const auto environment = read_environment();
    if (!environment) return environment.error();
    return make_config(nullptr, *environment);
}

Result<Device> open_first_device() {
    const auto config = environment_config();
    if (!config) return config.error();
    const auto driver = load_driver(config->libcuda);
    if (!driver) return driver.error();
    const auto count = device_count(**driver);
    if (!count) return count.error();
    if (*count == 0) return failure("the driver lists no device");
    return Device::open(*driver, 0);
}

}  // namespace nq::cli
