// Prints what the network of a bundle would get for the rows of a request; needs no ONNX Runtime.
//
//     inputs BUNDLE REQUEST.json
//
// One line of JSON for each input: {"input": …, "width": …, "values": […]}. Compare it with another
// implementation's to find out where two scores begin to differ.
#include <cstdio>
#include <iostream>

#include "bundle.h"

int main(int count, char** arguments) {
    if (count != 3) {
        std::cerr << "usage: inputs BUNDLE REQUEST.json\n";
        return 2;
    }
    try {
        const bundle::Bundle opened(arguments[1]);
        for (const bundle::Input& input :
             opened.inputs(json::Parser(bundle::content(arguments[2])).document())) {
            std::printf("{\"input\": \"%s\", \"width\": %zu, \"values\": [", input.name.c_str(), input.width);
            for (std::size_t i = 0; i < input.values.size(); ++i)
                std::printf("%s%.9g", i ? ", " : "", static_cast<double>(input.values[i]));
            std::printf("]}\n");
        }
    } catch (const std::exception& error) {
        std::cerr << "inputs: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
