// normquant warmup: where its problems come from. On the NVRTC that compiles nothing.
#include "cache_fixture.h"
#include "support/catch.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

using namespace nq::test;

namespace {

using Json = nlohmann::json;

ToolResult warmup(std::vector<std::string> arguments, const std::string& nvrtc = NORMQUANT_FAKE_NVRTC) {
    arguments.insert(arguments.begin(), "warmup");
    return run_tool(arguments, {"NORMQUANT_NVRTC=" + nvrtc});
}

// One line a problem, sorted: "7168 add_rmsnorm bf16 same 0 nvfp4 linear off off".
std::set<std::string> problems_of(const Json& plan) {
    std::set<std::string> lines;
    for (const Json& problem : plan["problems"]) {
        std::ostringstream line;
        line << problem["hidden"].get<int>();
        for (const char* key : {"op", "dtype", "weight_dtype"}) line << ' ' << problem[key].get<std::string>();
        line << ' ' << problem["weight_bias"].get<int>();
        for (const char* key : {"format", "layout", "y_out", "overlap"}) line << ' ' << problem[key].get<std::string>();
        lines.insert(line.str());
    }
    return lines;
}

std::set<std::string> planned(std::vector<std::string> arguments) {
    for (const char* more : {"--dry-run", "--json"}) arguments.emplace_back(more);
    const ToolResult result = warmup(arguments);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return problems_of(result.json());
}

// Of a config of tests/data/models, for NVFP4 with linear scales.
std::set<std::string> of_model(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"--model", NORMQUANT_TEST_DATA "/models/" + name, "--arch", "sm_90",
                                       "--format", "nvfp4", "--layout", "linear"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return planned(arguments);
}

std::string write(const TempDirectory& directory, const std::string& name, const std::string& text) {
    save(directory / name, {text.begin(), text.end()});
    return directory / name;
}

void refused(const std::vector<std::string>& arguments, const std::string& message) {
    const ToolResult result = warmup(arguments);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(message) != std::string::npos);
    CHECK(result.out.empty());
}

Json archs(const std::string& names, const std::string& nvrtc = NORMQUANT_FAKE_NVRTC) {
    const ToolResult result = warmup({"--hidden", "64", "--arch", names, "--dry-run", "--json"}, nvrtc);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result.json()["archs"];
}

// Has the process been sent it, and not got it yet?
bool is_pending(pid_t process, int signal) {
    std::ifstream status("/proc/" + std::to_string(process) + "/status");
    for (std::string label, value; status >> label;) {
        if (label == "ShdPnd:") return status >> value && (std::stoull(value, nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
}

}  // namespace

TEST_CASE("configs of public models tell the problems of their norms") {
    using Lines = std::set<std::string>;
    const auto residual = [](const std::string& hidden, const std::string& dtype, const std::string& bias) {
        const std::string tail = " " + dtype + " same " + bias + " nvfp4 linear off off";
        return Lines{hidden + " rmsnorm" + tail, hidden + " add_rmsnorm" + tail};
    };
    const auto with = [](Lines lines, const Lines& more) {
        lines.insert(more.begin(), more.end());
        return lines;
    };
    CHECK(of_model("llama_3_70b.json") == residual("8192", "bf16", "0"));
    CHECK(of_model("mixtral_8x7b.json") == residual("4096", "bf16", "0"));
    CHECK(of_model("phi_4.json") == residual("5120", "bf16", "0"));
    CHECK(of_model("gpt_oss_20b.json") == residual("2880", "bf16", "0"));
    CHECK(of_model("qwen3_32b.json") == with(residual("5120", "bf16", "0"), {"128 rmsnorm bf16 same 0 nvfp4 linear off off"}));
    CHECK(of_model("deepseek_v3.json") == with(residual("7168", "bf16", "0"), {"1536 rmsnorm bf16 same 0 nvfp4 linear off off",
                                                                               "512 rmsnorm bf16 same 0 nvfp4 linear off off"}));
    CHECK(of_model("gemma_3_27b.json") == with(residual("5376", "bf16", "1"), {"128 rmsnorm bf16 same 1 nvfp4 linear off off"}));
    CHECK(of_model("unknown.json") == residual("6144", "fp16", "0"));
    refused({"--model", NORMQUANT_TEST_DATA "/models/phi_2.json", "--arch", "sm_90"}, "model_type 'phi' is not known and has no rms_norm_eps");
}

TEST_CASE("options that are given win over the model") {
    CHECK(of_model("gemma_3_27b.json", {"--op", "add_rmsnorm", "--weight-bias", "0", "--dtype", "fp16", "--weight-dtype", "fp32"}) ==
          std::set<std::string>{"5376 add_rmsnorm fp16 fp32 0 nvfp4 linear off off", "128 rmsnorm fp16 fp32 0 nvfp4 linear off off"});
    CHECK(of_model("llama_3_70b.json", {"--op", "rmsnorm", "--y-out", "off,on", "--overlap", "on"}) ==
          std::set<std::string>{"8192 rmsnorm bf16 same 0 nvfp4 linear off on", "8192 rmsnorm bf16 same 0 nvfp4 linear on on"});
}

TEST_CASE("a model of a dtype that rows cannot have is planned with the one that is given") {
    const TempDirectory d;
    const std::string config = write(d, "config.json", R"({"model_type": "llama", "hidden_size": 64, "torch_dtype": "float32"})");
    const std::vector<std::string> arguments{"--model", config, "--arch", "sm_90", "--format", "nvfp4", "--layout", "linear", "--dtype", "bf16"};
    const std::set<std::string> expected{"64 rmsnorm bf16 same 0 nvfp4 linear off off", "64 add_rmsnorm bf16 same 0 nvfp4 linear off off"};
    CHECK(planned(arguments) == expected);
    // The weights beside it do not decide in its place.
    save(d / "model.safetensors", safetensors(R"({"model.norm.weight":{"dtype":"F16","shape":[64],"data_offsets":[0,128]}})", Blob(128)));
    refused({"--model", d.path(), "--arch", "sm_90"}, "torch_dtype is 'float32'");
}

TEST_CASE("a model of a type that is not known is planned with a note") {
    const ToolResult result = warmup({"--model", NORMQUANT_TEST_DATA "/models/unknown.json", "--arch", "sm_90", "--dry-run"});
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("model_type 'tomorrow' is not known") != std::string::npos);
    CHECK(result.out.find("--weight-bias 1") != std::string::npos);
}

TEST_CASE("configs that say too little, or nonsense") {
    const TempDirectory d;
    const auto config = [&](const std::string& text, const std::string& message) {
        refused({"--model", write(d, "config.json", text), "--arch", "sm_90"}, "config.json: " + message);
    };
    config("{", "it is not a JSON object");
    config("[1]", "it is not a JSON object");
    config(R"({"model_type": "llama"})", "it has no hidden_size");
    config(R"({"model_type": "llama", "hidden_size": "wide"})", "hidden_size is \"wide\": a whole number is accepted");
    config(R"({"model_type": "llama", "hidden_size": -1})", "hidden_size is -1");
    config(R"({"model_type": "llama", "hidden_size": 64, "torch_dtype": "float32"})",
           "torch_dtype is 'float32': rows are bfloat16 or float16; say which with --dtype");
    config(R"({"model_type": "phimoe", "hidden_size": 64, "rms_norm_eps": 1e-5})", "model_type 'phimoe' computes a LayerNorm");
    refused({"--model", d / "absent.json", "--arch", "sm_90"}, "absent.json: No such file");
    refused({"--model", d.path() + "/..", "--arch", "sm_90"}, "has neither a config.json nor a .safetensors file");
}

TEST_CASE("lengths without a kernel are left out of a model, and named") {
    const TempDirectory d;
    const std::string config = write(d, "config.json", R"({"model_type": "qwen3", "hidden_size": 4096, "head_dim": 80, "kv_lora_rank": 8})");
    const ToolResult result = warmup({"--model", config, "--arch", "sm_90", "--layout", "linear", "--dry-run", "--json"});
    REQUIRE(result.exit_code == 0);
    std::set<std::string> narrow;
    for (const std::string& line : problems_of(result.json())) {
        if (line.starts_with("80 ")) narrow.insert(line);
    }
    CHECK(narrow == std::set<std::string>{"80 rmsnorm bf16 same 0 nvfp4 linear off off"});
    const std::string left_out = result.json()["left_out"].dump();
    CHECK(left_out.find("H=80 mxfp4") != std::string::npos);
    CHECK(left_out.find("kv_lora_rank 8") != std::string::npos);
}

TEST_CASE("the weights of a model tell lengths and types") {
    const TempDirectory d;
    const std::string header =
        R"({"model.embed_tokens.weight":{"dtype":"F16","shape":[2,64],"data_offsets":[0,256]},)"
        R"("model.layers.0.input_layernorm.weight":{"dtype":"F32","shape":[64],"data_offsets":[256,512]},)"
        R"("model.layers.0.self_attn.q_norm.weight":{"dtype":"F16","shape":[16],"data_offsets":[512,544]},)"
        R"("model.layers.0.mlp.gate.weight":{"dtype":"F16","shape":[16],"data_offsets":[544,576]},)"
        R"("vision.norm1.weight":{"dtype":"F16","shape":[48],"data_offsets":[576,672]},)"
        R"("vision.norm1.bias":{"dtype":"F16","shape":[48],"data_offsets":[672,768]}})";
    save(d / "model.safetensors", safetensors(header, Blob(768)));
    const std::vector<std::string> more{"--arch", "sm_90", "--format", "nvfp4", "--layout", "linear"};
    const auto plan = [&](const std::string& path) {
        std::vector<std::string> arguments{"--model", path};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return planned(arguments);
    };
    const std::set<std::string> expected{"64 rmsnorm fp16 fp32 0 nvfp4 linear off off", "64 add_rmsnorm fp16 fp32 0 nvfp4 linear off off",
                                         "16 rmsnorm fp16 same 0 nvfp4 linear off off"};
    CHECK(plan(d / "model.safetensors") == expected);
    CHECK(plan(d.path()) == expected);
    const ToolResult noted = warmup({"--model", d.path(), "--arch", "sm_90", "--dry-run"});
    CHECK(noted.out.find("norm1 has a bias: a LayerNorm") != std::string::npos);

    // The config says the type of the rows and which norm is of the residual stream; the lengths are those of the weights.
    write(d, "config.json", R"({"model_type": "gemma3_text", "hidden_size": 64, "head_dim": 32, "torch_dtype": "bfloat16"})");
    CHECK(plan(d.path()) == std::set<std::string>{"64 rmsnorm bf16 fp32 1 nvfp4 linear off off", "64 add_rmsnorm bf16 fp32 1 nvfp4 linear off off",
                                                  "16 rmsnorm bf16 same 1 nvfp4 linear off off"});

    save(d / "model.safetensors", {1, 2, 3});
    refused({"--model", d.path(), "--arch", "sm_90"}, "model.safetensors: 3 bytes are too few");
}

TEST_CASE("targets have the names of GPUs") {
    CHECK(archs("h200") == Json({"sm_90"}));
    CHECK(archs("b200,B300,gb300") == Json({"sm_100f"}));
    CHECK(archs("rtx5090,RTX-5090,dgx_spark,sm_89") == Json({"sm_120f", "sm_89"}));
    CHECK(archs("b100") == Json({"sm_100f"}));
    CHECK(archs("rtx5070,rtx5060") == Json({"sm_120f"}));
    CHECK(archs("rtx4070,l20") == Json({"sm_89"}));
    CHECK(archs("all") == Json({"sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100f", "sm_110f", "sm_120f"}));
    CHECK(archs("all", "/nonexistent") == archs("all"));
    refused({"--hidden", "64", "--arch", "h100x"}, "GPUs: a100");
    // What NVRTC cannot compile for: an error where it is named, a note with all.
    CHECK(archs("b200", NORMQUANT_FAKE_NVRTC_12_8) == Json({"sm_100a"}));
    const ToolResult named = warmup({"--hidden", "64", "--arch", "thor", "--dry-run"}, NORMQUANT_FAKE_NVRTC_12_8);
    CHECK(named.exit_code == 1);
    CHECK(named.err.find("--arch thor: GPU compute capability 11.0 needs NVRTC >= 13.0; found: 12.8") != std::string::npos);
    const ToolResult all = warmup({"--hidden", "64", "--arch", "all", "--dry-run"}, NORMQUANT_FAKE_NVRTC_12_8);
    CHECK(all.exit_code == 0);
    CHECK(all.out.find("GPU compute capability 11.0 needs NVRTC >= 13.0") != std::string::npos);
}

TEST_CASE("manifests are JSON: a document, a list, or lines") {
    const TempDirectory d;
    const auto plan = [&](const std::string& text, std::vector<std::string> more = {}) {
        std::vector<std::string> arguments{"--manifest", write(d, "m.json", text), "--format", "nvfp4", "--layout", "linear"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return planned(arguments);
    };
    const std::set<std::string> both{"64 rmsnorm bf16 same 0 nvfp4 linear off off", "4096 rmsnorm bf16 same 0 nvfp4 linear off off"};
    CHECK(plan(R"({"arch": "h200", "problems": [{"hidden": [64, 4096]}]})") == both);
    CHECK(plan(R"([{"hidden": 64}, {"hidden": "4096"}])", {"--arch", "sm_90"}) == both);
    CHECK(plan("{\"hidden\": 64, \"arch\": \"sm_90\"}\n\n{\"hidden\": 4096, \"arch\": [\"sm_90\"]}\n{\"hidden\": 64, \"arch\": \"sm_90\"}\n") == both);
    CHECK(plan(R"({"hidden": 64, "arch": "sm_90"})") == std::set<std::string>{"64 rmsnorm bf16 same 0 nvfp4 linear off off"});
    CHECK(plan(R"([{"hidden": 64, "op": "add_rmsnorm", "dtype": "fp16", "weight_dtype": "fp32", "weight_bias": 1, "format": "ue8m0/16",
                    "layout": "both", "y_out": true, "overlap": true}])", {"--arch", "sm_90"}) ==
          std::set<std::string>{"64 add_rmsnorm fp16 fp32 1 ue8m0/16 both on on"});

    // What stands beside the problems holds for each that does not say otherwise, whatever the options say.
    CHECK(plan(R"({"arch": "h200", "layout": "swizzled", "hidden": 128, "problems": [{"hidden": 64}, {"op": "add_rmsnorm", "layout": "both"}]})") ==
          std::set<std::string>{"64 rmsnorm bf16 same 0 nvfp4 swizzled off off", "128 add_rmsnorm bf16 same 0 nvfp4 both off off"});

    const auto bad = [&](const std::string& text, const std::string& message) {
        refused({"--manifest", write(d, "m.json", text), "--arch", "sm_90"}, "m.json: " + message);
    };
    bad("", "it has no problems");
    bad("[]", "it has no problems");
    bad("{\"hidden\": 64}\nhidden: 65\n", "line 2 is not a JSON object");
    bad(R"([{"hiden": 64}])", "problem 1: 'hiden' is none of hidden, arch, op");
    bad(R"([{"hidden": 64}, {"op": "rmsnorm"}])", "problem 2: it has no hidden");
    bad(R"([{"hidden": {}}])", "problem 1: hidden is {}");
    bad(R"([{"hidden": []}])", "problem 1: hidden is an empty list");
    bad(R"([{"hidden": 64, "layout": "diagonal"}])", "problem 1: --layout 'diagonal' is not accepted: choose one of linear, swizzled, both");
    bad("3", "it has no problems");
    bad(R"({"archs": ["h200"], "problems": [{"hidden": 64}]})", "'archs' is none of problems, hidden, arch, op");
    bad(R"({"command": "warmup", "problems": [{"hidden": 64}]})", "'command' is none of problems, ");
    refused({"--manifest", d / "absent", "--arch", "sm_90"}, "absent: No such file");
    refused({"--manifest", write(d, "m.json", R"({"hidden": 64})")}, "--arch is missing");
    refused({"--arch", "sm_90"}, "nothing to compile: give --hidden, --model or --manifest");
}

TEST_CASE("a record whose writer was killed is read but for the line it was at") {
    const TempDirectory d;
    const std::string whole = R"({"hidden":64,"op":"rmsnorm","arch":"sm_90"})";
    for (const char* const torn : {R"({"hidden":4096,"op":"add_)", R"({"hid)", R"({)"}) {
        for (const std::string& text : {whole + "\n" + torn, std::string(torn) + "\n" + whole + "\n"}) {
            INFO(text);
            const ToolResult result = warmup({"--manifest", write(d, "m.json", text), "--format", "nvfp4", "--layout", "linear", "--dry-run", "--json"});
            REQUIRE(result.exit_code == 0);
            CHECK(problems_of(result.json()) == std::set<std::string>{"64 rmsnorm bf16 same 0 nvfp4 linear off off"});
            const std::string line = text.starts_with(whole) ? "2" : "1";
            CHECK(result.json()["left_out"] == Json({d.path() + "/m.json: line " + line + " is the beginning of a problem, and left out"}));
        }
    }
    // What was never the beginning of a record is a mistake.
    refused({"--manifest", write(d, "m.json", whole + "\n{\"hiden\": 64"), "--arch", "sm_90"}, "line 2 is not a JSON object");
    refused({"--manifest", write(d, "m.json", "{\"hidden\":64,}\n" + whole), "--arch", "sm_90"}, "line 1 is not a JSON object");
}

TEST_CASE("the README's numbers of kernels") {
    const auto kernels = [](const std::string& model) {
        const ToolResult result = warmup({"--model", NORMQUANT_TEST_DATA "/models/" + model, "--arch", "sm_90,sm_100f,sm_120f", "--format", "nvfp4",
                                          "--layout", "swizzled", "--dry-run", "--json"});
        REQUIRE(result.exit_code == 0);
        return result.json()["kernels"].get<int>();
    };
    std::ifstream readme(NORMQUANT_SOURCE_ROOT "/README.md");
    std::string said;
    for (std::string line; std::getline(readme, line);) {
        if (line.starts_with("Every kernel of a model for sm_90, sm_100f and sm_120f, NVFP4 with swizzled scales: ")) said = line;
    }
    CHECK(said.find("Llama 3 70B " + std::to_string(kernels("llama_3_70b.json")) + " kernels") != std::string::npos);
    CHECK(said.find("DeepSeek V3 " + std::to_string(kernels("deepseek_v3.json")) + " kernels") != std::string::npos);
}

TEST_CASE("a dry run's JSON is a manifest, of targets each with its own problems") {
    const TempDirectory d;
    const std::string manifest = write(d, "m.json", R"([{"hidden": 64, "arch": ["sm_90", "sm_80"]}, {"hidden": 4096, "arch": "sm_90"}])");
    const ToolResult first = warmup({"--manifest", manifest, "--dry-run", "--json"});
    REQUIRE(first.exit_code == 0);
    Json plan = first.json();
    const ToolResult second = warmup({"--manifest", write(d, "plan.json", first.out), "--dry-run", "--json"});
    REQUIRE(second.exit_code == 0);
    CHECK(second.json()["problems"] == plan["problems"]);
    CHECK(second.json()["kernels"] == plan["kernels"]);
    // --arch wins over the manifest's.
    const ToolResult other = warmup({"--manifest", manifest, "--arch", "b200", "--dry-run", "--json"});
    CHECK(other.json()["archs"] == Json({"sm_100f"}));
    CHECK(problems_of(other.json()) == problems_of(plan));
}

TEST_CASE("a dry run is what a run then does, and writes nothing") {
    const CacheFixture f;
    const std::vector<std::string> arguments{"warmup", "--hidden", "64", "--arch", "sm_90,sm_80,sm_100f", "--op", "rmsnorm,add_rmsnorm",
                                             "--layout", "both", "--overlap", "off,on", "--json"};
    std::vector<std::string> dry = arguments;
    dry.emplace_back("--dry-run");
    const ToolResult plan = f.run(dry);
    REQUIRE(plan.exit_code == 0);
    CHECK_FALSE(std::filesystem::exists(f.root));
    const ToolResult run = f.run(arguments);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.json()["kernels"] == plan.json()["kernels"]);
    CHECK(run.json()["planned"] == plan.json()["kernels"]);
    CHECK(run.json()["interrupted"] == false);
}

TEST_CASE("progress is a bar on a terminal, plain lines elsewhere") {
    const CacheFixture f;
    const std::vector<std::string> arguments{"warmup", "--hidden", "64", "--arch", "sm_90", "--layout", "linear"};
    const ToolResult terminal = run_tool_on_terminal(arguments, f.settings({"TERM=xterm"}));
    INFO(terminal.out);
    CHECK(terminal.exit_code == 0);
    CHECK(terminal.out.find("\r\033[K[") != std::string::npos);
    CHECK(terminal.out.find("/s  0:00 left") != std::string::npos);
    CHECK(terminal.out.find("left  sm_90 H=64") != std::string::npos);
    CHECK(terminal.out.find("\r\033[Knormquant warmup: ") != std::string::npos);  // the summary takes the bar's place
    const ToolResult dumb = run_tool_on_terminal(arguments, f.settings({"TERM=dumb"}));
    CHECK(dumb.out.find('\033') == std::string::npos);
    const ToolResult piped = f.run(arguments, {"TERM=xterm"});
    CHECK(piped.err.find("[1/") == 0);
    CHECK((piped.err + piped.out).find_first_of("\033\r") == std::string::npos);
}

TEST_CASE("what is logged takes the bar's place") {
    const CacheFixture f;
    const ToolResult terminal = run_tool_on_terminal({"warmup", "--hidden", many_lengths(), "--arch", "sm_90", "--format", "nvfp4"},
                                                     f.settings({"TERM=xterm", "NORMQUANT_LOG=info"}));
    INFO(terminal.out);
    CHECK(terminal.exit_code == 0);
    std::size_t lines = 0;
    for (std::size_t at = terminal.out.find("normquant: info: "); at != std::string::npos; at = terminal.out.find("normquant: info: ", at + 1)) {
        ++lines;
        const std::string_view before = std::string_view(terminal.out).substr(0, at);
        CHECK((before.empty() || before.ends_with('\n') || before.ends_with("\033[K")));
    }
    CHECK(lines > 36);  // one for each compile
}

TEST_CASE("a warm-up that is interrupted before anything was made is partial, too") {
    const CacheFixture f;
    const ToolResult stopped = meet_tool({"warmup", "--hidden", many_lengths(), "--arch", "sm_90", "--format", "nvfp4", "--threads", "1", "--json"},
                                         f.settings({"NORMQUANT_JIT=off"}), "", [](pid_t child) { REQUIRE(kill(child, SIGINT) == 0); });
    CHECK(stopped.exit_code == 3);
    CHECK(stopped.json()["interrupted"] == true);
    CHECK(stopped.json()["failed"] == stopped.json()["kernels"]);
}

TEST_CASE("an interrupted warm-up says so, and is resumed by the same command") {
    const CacheFixture f;
    const std::string bundle = f.directory / "kernels.nqb";
    const std::vector<std::string> arguments{"warmup", "--hidden", many_lengths(), "--arch", "sm_90", "--format", "nvfp4",
                                             "--layout", "linear", "--threads", "1", "--bundle", bundle, "--json"};
    const int signal = GENERATE(SIGINT, SIGTERM);
    const ToolResult stopped = meet_tool(arguments, f.settings(), "", [&](pid_t child) { REQUIRE(kill(child, signal) == 0); });
    INFO(stopped.err);
    CHECK(stopped.exit_code == 3);
    const Json part = stopped.json();
    CHECK(part["interrupted"] == true);
    CHECK(part["compiled"].get<int>() >= 1);
    CHECK(part["kernels"].get<int>() < part["planned"].get<int>());
    CHECK(part["bundle"].is_null());
    CHECK_FALSE(std::filesystem::exists(bundle));

    const ToolResult resumed = f.run(arguments);
    CHECK(resumed.exit_code == 0);
    CHECK(resumed.json()["cached"].get<int>() >= part["kernels"].get<int>());
    CHECK(resumed.json()["kernels"] == part["planned"]);
    CHECK(resumed.json()["bundle"]["kernels"] == part["planned"]);
}

TEST_CASE("a second signal ends a warm-up at once") {
    const CacheFixture f;
    const ToolResult ended = meet_tool({"warmup", "--hidden", many_lengths(), "--arch", "sm_90", "--format", "nvfp4", "--threads", "1"},
                                       f.settings(), "", [](pid_t child) {
                                           REQUIRE(kill(child, SIGINT) == 0);
                                           while (is_pending(child, SIGINT)) std::this_thread::yield();  // two are one
                                           REQUIRE(kill(child, SIGINT) == 0);
                                       });
    CHECK(ended.exit_code == 128 + SIGINT);
    CHECK(ended.out.empty());
}

TEST_CASE("every compile is dumped where NORMQUANT_DUMP_DIR says") {
    const CacheFixture f;
    const std::string dump = f.directory / "dump";
    const ToolResult result = f.run({"warmup", "--hidden", "64", "--arch", "sm_90", "--format", "nvfp4", "--layout", "linear"},
                                    {"NORMQUANT_DUMP_DIR=" + dump});
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.find("warning") == std::string::npos);
    for (const Json& entry : f.entries()) {
        const std::string base = dump + "/" + entry["key"].get<std::string>();
        for (const char* extension : {".cu", ".ptx", ".cubin", ".log", ".json"}) CHECK(std::filesystem::exists(base + extension));
        const Blob text = read(base + ".json");
        const Json facts = Json::parse(text);
        CHECK(facts["arch"] == "sm_90");
        CHECK(facts["problem"] == entry["problem"]);
        CHECK(std::filesystem::exists(dump + "/" + facts["include"].get<std::string>() + "/normquant/rmsnorm_fp4.cuh"));
    }
    // Where it cannot be written, the warm-up goes on, with one warning.
    save(f.directory / "file", {'x'});
    const ToolResult blocked = f.run({"warmup", "--hidden", "96", "--arch", "sm_90", "--format", "nvfp4", "--layout", "linear"},
                                     {"NORMQUANT_DUMP_DIR=" + (f.directory / "file")});
    CHECK(blocked.exit_code == 0);
    const std::size_t warning = blocked.err.find("NORMQUANT_DUMP_DIR: not dumped: ");
    CHECK(warning != std::string::npos);
    CHECK(blocked.err.find("NORMQUANT_DUMP_DIR", warning + 1) == std::string::npos);
}

TEST_CASE("info --bug-report has the system, the settings and doctor's findings, and no home directory") {
    const CacheFixture f;
    const ToolResult result = f.run({"info", "--bug-report", "--json"}, {"HOME=" + f.directory.path(), "NORMQUANT_LOG=info"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    const Json report = result.json();
    CHECK(report["settings"]["NORMQUANT_LOG"] == "info");
    CHECK(report["settings"]["NORMQUANT_CACHE_DIR"] == "~/cache");
    CHECK(report["cache_dir"] == "~/cache");
    CHECK(report["system"]["cores"].get<int>() > 0);
    CHECK(report["findings"].size() > 3);
    CHECK(result.out.find(f.directory.path()) == std::string::npos);
    // Secrets stay where they are, also where a setting cannot be used.
    const ToolResult broken = f.run({"info", "--bug-report", "--json"}, {"NVIDIA_API_KEY=nvapi-1", "CUDA_TOKEN=nvapi-2", "NVIDIA_VISIBLE_DEVICES=all",
                                                                         "NORMQUANT_JIT=perhaps"});
    CHECK(broken.exit_code == 1);
    CHECK(broken.out.find("nvapi") == std::string::npos);
    CHECK(broken.json()["settings"]["NVIDIA_VISIBLE_DEVICES"] == "all");
    CHECK(broken.json()["settings"]["NORMQUANT_JIT"] == "perhaps");
    CHECK(broken.json()["message"].get<std::string>().find("NORMQUANT_JIT") != std::string::npos);
    const ToolResult text = f.run({"info", "--bug-report"}, {"HOME=" + f.directory.path()});
    CHECK(text.out.find("NORMQUANT_CACHE_DIR ~/cache\n") != std::string::npos);
    CHECK(text.out.find(f.directory.path()) == std::string::npos);
}
