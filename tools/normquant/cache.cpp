// normquant cache: what is in the kernel cache, and what is done with it as a whole.
#include "cache_commands.h"

#include <CLI/CLI.hpp>

namespace nq::cli {
namespace {

constexpr const char* kCacheFooter =
    R"(The cache holds one file a kernel: <root>/v1/<arch>/<2 hex>/<30 hex>-<16 hex>.nqc, named by its request key and by the NVRTC
that made it. Read-only layers, directories and bundles, are named in NORMQUANT_BUNDLES and searched before the root.
It is always safe to delete the directory: kernels are compiled again.

  look     list, show, verify, explain, stats, path     change nothing, verify --repair and stats --reset aside
  move     extract, export, import                      kernels as files
  upkeep   gc, clear                                    normally not needed: the size limit is kept by itself

Examples:
  normquant cache list --arch sm_90 --sort size --reverse
  normquant cache explain --hidden 4096 --arch sm_90
  normquant cache COMMAND --help
Exit codes: 0 done, 1 failed or bad entries, 2 bad option, 3 partly done.)";

}  // namespace

std::vector<Command> add_cache(CLI::App& parent) {
    CLI::App* cache = parent.add_subcommand("cache", "Look at the kernel cache, and look after it");
    cache->require_subcommand(0, 1);
    cache->footer(kCacheFooter);
    return {add_cache_list(*cache),    add_cache_show(*cache),   add_cache_verify(*cache), add_cache_explain(*cache),
            add_cache_extract(*cache), add_cache_export(*cache), add_cache_import(*cache), add_cache_gc(*cache),
            add_cache_clear(*cache),   add_cache_stats(*cache),  add_cache_path(*cache)};
}

}  // namespace nq::cli
