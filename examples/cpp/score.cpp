// Scores the rows of a request with a bundle: ONNX Runtime's C API for the network, mapped files for the
// rows.
//
//     score BUNDLE REQUEST.json       {"rows": [{field: value, …}, …]}, as a server gets it
//
// Prints {"version": …, "scores": […]}, as a server answers. docs/cpp.md says how to build it.
#include <onnxruntime_c_api.h>

#include <cstdio>
#include <iostream>

#include "bundle.h"

namespace {

const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);

void check(OrtStatus* status) {
    if (!status) return;
    const std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw std::runtime_error("ONNX Runtime: " + message);
}

// The network of a bundle. Runs may go on in several threads at once.
class Network {
  public:
    explicit Network(const bundle::Bundle& of) : bundle_(of) {
        if (!api)
            throw std::runtime_error("libonnxruntime is older than the headers that this was built with");
        check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "score", &env_));
        OrtSessionOptions* options = nullptr;
        check(api->CreateSessionOptions(&options));
        check(api->SetIntraOpNumThreads(options, 1));  // a thread per request; requests run side by side
        // Numbers below 1.2e-38 are zero, as they were in training.
        check(api->AddSessionConfigEntry(options, "session.set_denormal_as_zero", "1"));
        check(api->CreateSession(env_, of.graph().c_str(), options, &session_));
        api->ReleaseSessionOptions(options);
        check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
    }
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;
    ~Network() {
        api->ReleaseMemoryInfo(memory_);
        api->ReleaseSession(session_);
        api->ReleaseEnv(env_);
    }

    // Probabilities [B] for each of the bundle's outputs.
    std::vector<std::vector<float>> run(std::vector<bundle::Input>& inputs, std::size_t samples) const {
        std::vector<const char*> names, wanted;
        std::vector<OrtValue*> tensors, found(bundle_.outputs().size(), nullptr);
        for (bundle::Input& input : inputs) {
            const std::int64_t shape[] = {static_cast<std::int64_t>(samples),
                                          static_cast<std::int64_t>(input.width)};
            OrtValue* tensor = nullptr;
            check(api->CreateTensorWithDataAsOrtValue(memory_, input.values.data(),
                                                      input.values.size() * sizeof(float), shape, 2,
                                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &tensor));
            names.push_back(input.name.c_str());
            tensors.push_back(tensor);
        }
        for (const auto& [label, output] : bundle_.outputs()) wanted.push_back(output.c_str());
        check(api->Run(session_, nullptr, names.data(), tensors.data(), tensors.size(), wanted.data(),
                       wanted.size(), found.data()));
        std::vector<std::vector<float>> scores;
        for (OrtValue* tensor : found) {
            float* values = nullptr;
            check(api->GetTensorMutableData(tensor, reinterpret_cast<void**>(&values)));
            scores.emplace_back(values, values + samples);
            api->ReleaseValue(tensor);
        }
        for (OrtValue* tensor : tensors) api->ReleaseValue(tensor);
        return scores;
    }

  private:
    const bundle::Bundle& bundle_;
    OrtEnv* env_ = nullptr;
    OrtSession* session_ = nullptr;
    OrtMemoryInfo* memory_ = nullptr;
};

void print(const std::vector<float>& scores) {
    std::cout << '[';
    for (std::size_t i = 0; i < scores.size(); ++i) {
        char text[32];
        std::snprintf(text, sizeof text, "%s%.9g", i ? ", " : "", static_cast<double>(scores[i]));
        std::cout << text;
    }
    std::cout << ']';
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::cerr << "usage: score BUNDLE REQUEST.json\n";
        return 2;
    }
    try {
        const bundle::Bundle opened(arguments[1]);
        const Network network(opened);
        const json::Value request = json::Parser(bundle::content(arguments[2])).document();
        std::vector<bundle::Input> inputs = opened.inputs(request);
        const auto scores = network.run(inputs, request.at("rows").items.size());
        std::cout << "{\"version\": \"" << opened.version() << "\", \"scores\": ";
        print(scores[0]);
        if (!opened.outputs()[0].first.empty()) {
            std::cout << ", \"scores_by_label\": {";
            for (std::size_t i = 0; i < scores.size(); ++i) {
                std::cout << (i ? ", \"" : "\"") << opened.outputs()[i].first << "\": ";
                print(scores[i]);
            }
            std::cout << '}';
        }
        std::cout << "}\n";
    } catch (const std::exception& error) {
        std::cerr << "score: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
