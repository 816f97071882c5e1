// Runs a package of AOTInductor. A method of torch.classes lets go of Python's lock while it runs;
// the loader that torch gives to Python holds it for the whole batch, and nobody reads requests.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/custom_class.h>

namespace {

struct Package : torch::CustomClassHolder {
  torch::inductor::AOTIModelPackageLoader loader;

  Package(const std::string& path, int64_t runners)
      : loader(path, "model", false, static_cast<size_t>(runners), -1) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    return loader.run(inputs);
  }

  // The code reads these weights where they are: who gives them keeps them alive.
  void share(const c10::Dict<std::string, at::Tensor>& weights) {
    std::unordered_map<std::string, at::Tensor> given;
    for (const auto& entry : weights) {
      given.emplace(entry.key(), entry.value());
    }
    loader.load_constants(given, false, false, true);
  }

  std::vector<std::string> names() {
    return loader.get_constant_fqns();
  }

  std::vector<std::string> spec() {
    return loader.get_call_spec();
  }
};

} // namespace

TORCH_LIBRARY(joymigrate_ranking, m) {
  m.class_<Package>("Package")
      .def(torch::init<const std::string&, int64_t>())
      .def("run", &Package::run)
      .def("share", &Package::share)
      .def("names", &Package::names)
      .def("spec", &Package::spec);
}
