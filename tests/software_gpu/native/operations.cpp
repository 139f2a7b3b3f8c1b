// liboperations.so: computes torch's operations on the software GPU, with the processor's kernels.
//
// Device memory is memory, so the bytes of a CUDA tensor can be seen as a CPU tensor. Each ATen operation that has
// kernels for both is replaced by one that shows its arguments that way, runs the CPU's kernel, and puts new results
// into tensors from torch's CUDA allocator. Memory that the device may not touch is an illegal access, as on a real
// one, and the time of one kernel passes on the current stream. libcuda.so.1 loads this into programs that use torch.
//
// Not computed: operations that only CUDA has (fused LSTM and GRU, depthwise convolution); cuDNN and fused attention
// are switched off. The workspaces of real kernels are not allocated.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDAStream.h>
#include <set>
#include <string>
#include <torch/library.h>
#include <vector>

extern "C" int sg_launch(void *stream, const char *name);
extern "C" int sg_access(const void *data, size_t size);
namespace at::native {
Tensor &copy_(Tensor &self, const Tensor &src, bool non_blocking);
}

namespace {

using c10::IValue;

constexpr int ILLEGAL_ADDRESS = 700;

void require_success(int error) {
    TORCH_CHECK(error != ILLEGAL_ADDRESS, "CUDA error: an illegal memory access was encountered");
    TORCH_CHECK(error == 0, "CUDA error: the device cannot be used (", error, ")");
}

// What an operation does is below torch's dispatch: no autograd, and no mode of the user's sees the CPU tensors.
struct BelowDispatch {
    at::AutoDispatchBelowAutograd below_autograd;
    c10::impl::ExcludeDispatchKeyGuard without_python{
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

void check_access(const at::Tensor &tensor) {
    if (tensor.numel() == 0)
        return;
    int64_t last = 0;
    for (int64_t dimension = 0; dimension < tensor.dim(); dimension++)
        last += (tensor.size(dimension) - 1) * tensor.stride(dimension);
    require_success(sg_access(tensor.const_data_ptr(), (last + 1) * tensor.element_size()));
}

// A CPU tensor over the same bytes.
at::Tensor as_host(const at::Tensor &tensor) {
    check_access(tensor);
    const auto &bytes = tensor.storage();
    at::DataPtr pointer(const_cast<void *>(bytes.data()), at::kCPU);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes.nbytes(), std::move(pointer), nullptr, false);
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    at::Tensor host(impl);
    if (tensor.is_conj())
        host._set_conj(true);
    if (tensor.is_neg())
        host._set_neg(true);
    return host;
}

// An argument, and what the CPU's kernel gets in its place.
struct Argument {
    at::Tensor device, host;
    bool is_sized_by_operation;
};

at::Tensor to_host(const at::Tensor &tensor, bool is_written, std::vector<Argument> &arguments) {
    if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided)
        return tensor;
    bool is_sized = is_written && tensor.numel() == 0;
    at::Tensor host = is_sized ? at::empty({0}, tensor.options().device(at::kCPU)) : as_host(tensor);
    arguments.push_back({tensor, host, is_sized});
    return host;
}

at::Tensor to_device(const at::Tensor &tensor, const std::vector<Argument> &arguments, c10::Device device) {
    if (!tensor.defined() || !tensor.is_cpu())
        return tensor;
    for (const auto &argument : arguments)
        if (argument.host.is_same(tensor))
            return argument.device;
    if (tensor.layout() != at::kStrided)
        return tensor;
    at::Tensor result = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
    if (tensor.numel()) {
        check_access(result);
        size_t available = tensor.storage().nbytes() - tensor.storage_offset() * tensor.element_size();
        memcpy(result.mutable_data_ptr(), tensor.const_data_ptr(), std::min(result.storage().nbytes(), available));
    }
    return result;
}

// Show an operation's arguments, on top of the stack, as the CPU's; return the device of its results.
c10::Device replace_arguments(const c10::FunctionSchema &schema, torch::jit::Stack &stack,
                              std::vector<Argument> &arguments) {
    std::optional<c10::Device> device;
    const size_t count = schema.arguments().size(), begin = stack.size() - count;
    for (size_t i = 0; i < count; i++) {
        IValue &value = stack[begin + i];
        auto alias = schema.arguments()[i].alias_info();
        bool is_written = alias && alias->isWrite();
        if (value.isTensor()) {
            value = to_host(value.toTensor(), is_written, arguments);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> hosts;
            for (const at::Tensor &tensor : value.toTensorVector())
                hosts.push_back(to_host(tensor, is_written, arguments));
            value = hosts;
        } else if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> hosts;
            for (const std::optional<at::Tensor> &tensor : value.toOptionalTensorVector())
                hosts.push_back(tensor ? std::optional(to_host(*tensor, is_written, arguments)) : std::nullopt);
            value = hosts;
        } else if (value.isDevice() && value.toDevice().is_cuda()) {
            device = value.toDevice();
            value = c10::Device(at::kCPU);
        } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
            value = IValue(); // the CPU's default generator
        }
    }
    if (!device && !arguments.empty())
        device = arguments.front().device.device();
    if (!device || !device->has_index())
        device = c10::Device(at::kCUDA, c10::cuda::current_device());
    return *device;
}

void replace_results(const c10::FunctionSchema &schema, torch::jit::Stack &stack,
                     const std::vector<Argument> &arguments, c10::Device device) {
    for (const auto &argument : arguments)
        if (argument.is_sized_by_operation && argument.host.numel()) {
            argument.device.resize_(argument.host.sizes());
            as_host(argument.device).copy_(argument.host);
        }
    for (size_t i = stack.size() - schema.returns().size(); i < stack.size(); i++) {
        IValue &value = stack[i];
        if (value.isTensor()) {
            value = to_device(value.toTensor(), arguments, device);
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> results;
            for (const at::Tensor &tensor : value.toTensorVector())
                results.push_back(to_device(tensor, arguments, device));
            value = results;
        }
    }
}

void launch(c10::Device device, const char *name) {
    require_success(sg_launch(c10::cuda::getCurrentCUDAStream(device.index()).stream(), name));
}

void compute(const c10::OperatorHandle &operation, c10::DispatchKeySet, torch::jit::Stack *stack) {
    const auto &schema = operation.schema();
    std::vector<Argument> arguments;
    c10::Device device = replace_arguments(schema, *stack, arguments);
    launch(device, schema.name().c_str());
    BelowDispatch below;
    operation.callBoxed(stack);
    replace_results(schema, *stack, arguments, device);
}

at::Tensor &copy(at::Tensor &self, const at::Tensor &source, bool non_blocking) {
    if (!self.is_cuda() || !source.is_cuda())
        return at::native::copy_(self, source, non_blocking);
    BelowDispatch below;
    launch(self.device(), "copy_");
    as_host(self).copy_(as_host(source));
    return self;
}

// Operations that torch's own CUDA code does with the driver alone, or that are about devices.
const std::set<std::string> kept = {
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::record_stream",
    "aten::set_",
    "aten::resize_",
    "aten::_resize_output_",
    "aten::_pin_memory",
    "aten::is_pinned",
    "aten::_local_scalar_dense",
    "aten::_copy_from",
    "aten::copy_",
    "aten::_fused_sdp_choice",
    "aten::is_set_to",
    "aten::_cudnn_init_dropout_state",
    "aten::_use_cudnn_rnn_flatten_weight",
};

bool is_kept(const c10::OperatorName &name) {
    const std::string full = toString(name);
    return kept.count(full) || kept.count(name.name) || full.find("cudnn") != std::string::npos ||
           full.find("miopen") != std::string::npos;
}

bool has_cpu_kernel(const c10::OperatorHandle &operation) {
    using c10::DispatchKey;
    for (auto key : {DispatchKey::CPU, DispatchKey::CompositeExplicitAutograd,
                     DispatchKey::CompositeExplicitAutogradNonFunctional})
        if (operation.hasKernelForDispatchKey(key))
            return true;
    return false;
}

bool is_view(const c10::OperatorHandle &operation) {
    for (const auto &argument : operation.schema().arguments())
        if (argument.alias_info() && !argument.alias_info()->isWrite())
            return true;
    return false;
}

class Quiet : public c10::WarningHandler {
    void process(const c10::Warning &) override {}
};

void install() {
    auto &context = at::globalContext();
    context.setUserEnabledCuDNN(false);
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
    Quiet quiet; // torch warns that registered kernels are replaced
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const auto &name : dispatcher.getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0 || is_kept(name))
            continue;
        auto operation = dispatcher.findOp(name);
        if (!operation || !operation->hasSchema() || !operation->hasKernelForDispatchKey(c10::DispatchKey::CUDA))
            continue;
        if (has_cpu_kernel(*operation) && !is_view(*operation))
            library.impl(toString(name).c_str() + std::string("aten::").size(),
                         torch::CppFunction::makeFromBoxedFunction<&compute>());
    }
    library.impl("copy_", copy);
}

const bool is_installed = (install(), true);

} // namespace
