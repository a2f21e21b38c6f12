/* standin: what generated extensions really use of torch's C++ headers, in a few hundred lines instead of a few hundred
 * thousand. Parsing torch/extension.h takes 30 s, several times per answer; this takes a fraction of one. A tensor here
 * is the Python object; what a member cannot answer from its own copy of sizes, strides and address, it asks Python. A
 * source that needs more than this does not compile and is then compiled with the real headers.
 *
 * The verifier puts this text in front of the answer's sources, leaves out their torch includes, and adds a binding per
 * function (KERNELRL_BIND). No Python headers are needed: the few functions of the stable C API are declared here. */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

typedef struct _object PyObject;
extern "C" {
PyObject *PyObject_GetAttrString(PyObject *, const char *);
int PyObject_HasAttrString(PyObject *, const char *);
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
int PyObject_IsTrue(PyObject *);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(PyObject *, ptrdiff_t, PyObject *);
ptrdiff_t PySequence_Size(PyObject *);
PyObject *PySequence_GetItem(PyObject *, ptrdiff_t);
PyObject *PyList_New(ptrdiff_t);
int PyList_SetItem(PyObject *, ptrdiff_t, PyObject *);
PyObject *PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
PyObject *PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject *);
PyObject *PyBool_FromLong(long);
PyObject *PyUnicode_FromString(const char *);
const char *PyUnicode_AsUTF8AndSize(PyObject *, ptrdiff_t *);
PyObject *PyDict_New(void);
int PyDict_SetItemString(PyObject *, const char *, PyObject *);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *, const char *);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
extern PyObject *PyExc_RuntimeError;
extern PyObject _Py_NoneStruct;
}

namespace kernelrl {

struct python_error : std::exception {}; /* the interpreter holds the message */

/* An owned reference. */
class ref {
    PyObject *p_ = nullptr;

  public:
    ref() = default;
    explicit ref(PyObject *owned) : p_(owned) {}
    ref(const ref &o) : p_(o.p_) { Py_IncRef(p_); }
    ref(ref &&o) noexcept : p_(o.p_) { o.p_ = nullptr; }
    ref &operator=(ref o) {
        std::swap(p_, o.p_);
        return *this;
    }
    ~ref() {
        if (p_) Py_DecRef(p_);
    }
    PyObject *get() const { return p_; }
    PyObject *release() {
        PyObject *p = p_;
        p_ = nullptr;
        return p;
    }
};

inline ref checked(PyObject *p) {
    if (!p) throw python_error();
    return ref(p);
}
inline ref borrowed(PyObject *p) {
    Py_IncRef(p);
    return ref(p);
}
inline ref attribute(PyObject *o, const char *name) { return checked(PyObject_GetAttrString(o, name)); }
inline ref torch_module() {
    static PyObject *module = nullptr;
    if (!module) module = checked(PyImport_ImportModule("torch")).release();
    return borrowed(module);
}
inline ref torch_attribute(const char *name) { return attribute(torch_module().get(), name); }

template <class T, class = void>
struct caster;

template <class... A>
ref call(PyObject *f, const A &...a);
template <class... A>
ref method(PyObject *o, const char *name, const A &...a) {
    return call(attribute(o, name).get(), a...);
}

} // namespace kernelrl

namespace c10 {

template <class T>
using optional = std::optional<T>;
constexpr std::nullopt_t nullopt = std::nullopt;

struct Half {
    uint16_t x;
};
struct BFloat16 {
    uint16_t x;
};

enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Bool = 11, BFloat16 = 15 };
constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kChar = ScalarType::Char,
                     kInt8 = ScalarType::Char, kShort = ScalarType::Short, kInt16 = ScalarType::Short,
                     kInt = ScalarType::Int, kInt32 = ScalarType::Int, kLong = ScalarType::Long,
                     kInt64 = ScalarType::Long, kHalf = ScalarType::Half, kFloat16 = ScalarType::Half,
                     kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kDouble = ScalarType::Double,
                     kFloat64 = ScalarType::Double, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;
struct type_row {
    ScalarType type;
    const char *name;
    size_t bytes;
};
inline const type_row *type_rows() {
    static const type_row rows[] = {{kFloat, "torch.float32", 4}, {kHalf, "torch.float16", 2},
                                    {kBFloat16, "torch.bfloat16", 2}, {kLong, "torch.int64", 8},
                                    {kInt, "torch.int32", 4},     {kDouble, "torch.float64", 8},
                                    {kBool, "torch.bool", 1},     {kByte, "torch.uint8", 1},
                                    {kChar, "torch.int8", 1},     {kShort, "torch.int16", 2},
                                    {kFloat, nullptr, 0}};
    return rows;
}
inline const type_row &row_of(ScalarType t) {
    const type_row *r = type_rows();
    while (r->name && r->type != t) r++;
    return *r;
}
inline const char *toString(ScalarType t) { return row_of(t).name; }
inline size_t elementSize(ScalarType t) { return row_of(t).bytes; }

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
struct Device {
    DeviceType type_ = kCPU;
    int index_ = -1;
    Device(DeviceType t = kCPU, int index = -1) : type_(t), index_(index) {}
    DeviceType type() const { return type_; }
    int index() const { return index_; }
    bool is_cuda() const { return type_ == kCUDA; }
    bool is_cpu() const { return type_ == kCPU; }
    bool operator==(const Device &o) const { return type_ == o.type_ && index_ == o.index_; }
    bool operator!=(const Device &o) const { return !(*this == o); }
    std::string str() const {
        return type_ == kCPU ? "cpu" : index_ < 0 ? "cuda" : "cuda:" + std::to_string(index_);
    }
};

template <class T>
class ArrayRef {
    const T *p_ = nullptr;
    size_t n_ = 0;

  public:
    ArrayRef() = default;
    ArrayRef(const T *p, size_t n) : p_(p), n_(n) {}
    ArrayRef(const std::vector<T> &v) : p_(v.data()), n_(v.size()) {}
    ArrayRef(const std::initializer_list<T> &v) : p_(v.begin()), n_(v.size()) {}
    size_t size() const { return n_; }
    bool empty() const { return n_ == 0; }
    const T &operator[](size_t i) const { return p_[i]; }
    const T &back() const { return p_[n_ - 1]; }
    const T &front() const { return p_[0]; }
    const T *begin() const { return p_; }
    const T *end() const { return p_ + n_; }
    const T *data() const { return p_; }
    std::vector<T> vec() const { return std::vector<T>(p_, p_ + n_); }
    operator std::vector<T>() const { return vec(); }
    bool operator==(const ArrayRef &o) const {
        if (n_ != o.n_) return false;
        for (size_t i = 0; i < n_; i++)
            if (!(p_[i] == o.p_[i])) return false;
        return true;
    }
    bool operator!=(const ArrayRef &o) const { return !(*this == o); }
};
using IntArrayRef = ArrayRef<int64_t>;

struct TensorOptions {
    std::optional<ScalarType> type_;
    std::optional<Device> device_;
    TensorOptions() = default;
    TensorOptions(ScalarType t) : type_(t) {}
    TensorOptions(Device d) : device_(d) {}
    TensorOptions(DeviceType d) : device_(Device(d)) {}
    TensorOptions dtype(ScalarType t) const {
        TensorOptions o = *this;
        o.type_ = t;
        return o;
    }
    TensorOptions device(Device d) const {
        TensorOptions o = *this;
        o.device_ = d;
        return o;
    }
    TensorOptions device(DeviceType d, int index = -1) const { return device(Device(d, index)); }
    TensorOptions requires_grad(bool = false) const { return *this; }
};

[[noreturn]] inline void fail(const std::string &text) { throw std::runtime_error(text); }
inline std::string joined() { return ""; }
template <class T, class... R>
std::string joined(const T &first, const R &...rest) {
    std::string text;
    if constexpr (std::is_same_v<T, std::string>)
        text = first;
    else if constexpr (std::is_convertible_v<T, const char *>)
        text = first;
    else if constexpr (std::is_same_v<T, ScalarType>)
        text = toString(first);
    else if constexpr (std::is_arithmetic_v<T>)
        text = std::to_string(first);
    return text + joined(rest...);
}

} // namespace c10

namespace at {

using namespace c10;

class Tensor {
    kernelrl::ref object_;
    void *data_ = nullptr;
    std::vector<int64_t> sizes_, strides_;
    ScalarType type_ = kFloat;
    Device device_;

    void look() {
        using namespace kernelrl;
        PyObject *o = object_.get();
        ref shape = attribute(o, "shape"), stride = method(o, "stride");
        ptrdiff_t n = PySequence_Size(shape.get());
        sizes_.clear();
        strides_.clear();
        for (ptrdiff_t i = 0; i < n; i++) {
            ref a = checked(PySequence_GetItem(shape.get(), i)), b = checked(PySequence_GetItem(stride.get(), i));
            sizes_.push_back(PyLong_AsLongLong(a.get()));
            strides_.push_back(PyLong_AsLongLong(b.get()));
        }
        data_ = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(method(o, "data_ptr").get());
        /* dtypes are objects that live for ever: compared by address with a table filled on first use. */
        static PyObject *known[16];
        PyObject *dtype = attribute(o, "dtype").get();
        const type_row *rows = type_rows();
        if (!known[0])
            for (int i = 0; rows[i].name; i++) known[i] = torch_attribute(rows[i].name + 6).get();
        int i = 0;
        while (rows[i].name && known[i] != dtype) i++;
        if (!rows[i].name) fail("a tensor of a type that is not supported");
        type_ = rows[i].type;
        bool cuda = PyObject_IsTrue(attribute(o, "is_cuda").get()) == 1;
        device_ = cuda ? Device(kCUDA, (int)PyLong_AsLongLong(method(o, "get_device").get())) : Device(kCPU);
    }

    template <class... A>
    Tensor ask(const char *name, const A &...a) const {
        return Tensor(kernelrl::method(object_.get(), name, a...));
    }

  public:
    Tensor() = default;
    explicit Tensor(kernelrl::ref o) : object_(std::move(o)) { look(); }
    PyObject *object() const { return object_.get(); }

    bool defined() const { return object_.get() != nullptr; }
    void *data_ptr() const { return data_; }
    const void *const_data_ptr() const { return data_; }
    void *mutable_data_ptr() const { return data_; }
    template <class T>
    T *data_ptr() const {
        return (T *)data_;
    }
    template <class T>
    const std::remove_const_t<T> *const_data_ptr() const {
        return (const std::remove_const_t<T> *)data_;
    }
    template <class T>
    T *mutable_data_ptr() const {
        return (T *)data_;
    }
    template <class T>
    T *data() const {
        return (T *)data_;
    }
    int64_t dim() const { return (int64_t)sizes_.size(); }
    int64_t ndimension() const { return dim(); }
    int64_t size(int64_t d) const { return sizes_.at((size_t)(d < 0 ? d + dim() : d)); }
    int64_t stride(int64_t d) const { return strides_.at((size_t)(d < 0 ? d + dim() : d)); }
    IntArrayRef sizes() const { return sizes_; }
    IntArrayRef strides() const { return strides_; }
    int64_t numel() const {
        int64_t n = 1;
        for (int64_t s : sizes_) n *= s;
        return n;
    }
    size_t element_size() const { return elementSize(type_); }
    int64_t itemsize() const { return (int64_t)element_size(); }
    size_t nbytes() const { return (size_t)numel() * element_size(); }
    ScalarType scalar_type() const { return type_; }
    ScalarType dtype() const { return type_; }
    Device device() const { return device_; }
    int get_device() const { return device_.index(); }
    bool is_cuda() const { return device_.is_cuda(); }
    bool is_cpu() const { return device_.is_cpu(); }
    bool is_floating_point() const {
        return type_ == kFloat || type_ == kHalf || type_ == kDouble || type_ == kBFloat16;
    }
    bool requires_grad() const { return false; }
    TensorOptions options() const { return TensorOptions(type_).device(device_); }
    bool is_contiguous() const {
        int64_t step = 1;
        for (size_t d = sizes_.size(); d-- > 0;) {
            if (sizes_[d] != 1 && strides_[d] != step) return false;
            step *= sizes_[d] ? sizes_[d] : 1;
        }
        return true;
    }
    Tensor contiguous() const { return is_contiguous() ? *this : ask("contiguous"); }
    Tensor clone() const { return ask("clone"); }
    Tensor detach() const { return ask("detach"); }
    Tensor cpu() const { return ask("cpu"); }
    Tensor cuda() const { return ask("cuda"); }
    Tensor to(ScalarType t) const { return ask("to", t); }
    Tensor to(Device d) const { return ask("to", d.str()); }
    Tensor view(IntArrayRef s) const { return ask("view", s.vec()); }
    Tensor reshape(IntArrayRef s) const { return ask("reshape", s.vec()); }
    Tensor expand(IntArrayRef s) const { return ask("expand", s.vec()); }
    Tensor permute(IntArrayRef s) const { return ask("permute", s.vec()); }
    Tensor transpose(int64_t a, int64_t b) const { return ask("transpose", a, b); }
    Tensor t() const { return ask("t"); }
    Tensor flatten() const { return ask("flatten"); }
    Tensor flatten(int64_t a, int64_t b = -1) const { return ask("flatten", a, b); }
    Tensor squeeze() const { return ask("squeeze"); }
    Tensor squeeze(int64_t d) const { return ask("squeeze", d); }
    Tensor unsqueeze(int64_t d) const { return ask("unsqueeze", d); }
    Tensor select(int64_t d, int64_t i) const { return ask("select", d, i); }
    Tensor narrow(int64_t d, int64_t a, int64_t n) const { return ask("narrow", d, a, n); }
    Tensor sum() const { return ask("sum"); }
    Tensor mean() const { return ask("mean"); }
    Tensor &zero_() {
        ask("zero_");
        return *this;
    }
    Tensor &fill_(double v) {
        ask("fill_", v);
        return *this;
    }
    Tensor &copy_(const Tensor &o) {
        ask("copy_", o);
        return *this;
    }
    Tensor operator[](int64_t i) const { return select(0, i); }
    template <class T>
    T item() const {
        return (T)PyFloat_AsDouble(kernelrl::method(object_.get(), "item").get());
    }
    template <class T, size_t N>
    void packed_accessor32() const = delete; /* the real headers have it */
};

inline Tensor made(const char *name, IntArrayRef s, const TensorOptions &o, const double *fill = nullptr);

} // namespace at

namespace kernelrl {

template <>
struct caster<at::Tensor> {
    static ref out(const at::Tensor &t) { return borrowed(t.defined() ? t.object() : &_Py_NoneStruct); }
    static at::Tensor in(PyObject *o) {
        return o == &_Py_NoneStruct ? at::Tensor() : at::Tensor(borrowed(o));
    }
};
template <class T>
struct caster<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
    static ref out(T v) { return checked(PyLong_FromLongLong((long long)v)); }
    static T in(PyObject *o) {
        long long v = PyLong_AsLongLong(o);
        if (v == -1 && PyErr_Occurred()) throw python_error();
        return (T)v;
    }
};
template <class T>
struct caster<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static ref out(T v) { return checked(PyFloat_FromDouble((double)v)); }
    static T in(PyObject *o) {
        double v = PyFloat_AsDouble(o);
        if (v == -1 && PyErr_Occurred()) throw python_error();
        return (T)v;
    }
};
template <>
struct caster<bool> {
    static ref out(bool v) { return checked(PyBool_FromLong(v)); }
    static bool in(PyObject *o) { return PyObject_IsTrue(o) == 1; }
};
template <>
struct caster<std::string> {
    static ref out(const std::string &v) { return checked(PyUnicode_FromString(v.c_str())); }
    static std::string in(PyObject *o) {
        ptrdiff_t n = 0;
        const char *p = PyUnicode_AsUTF8AndSize(o, &n);
        if (!p) throw python_error();
        return std::string(p, (size_t)n);
    }
};
template <>
struct caster<at::ScalarType> {
    static ref out(at::ScalarType t) { return torch_attribute(at::toString(t) + 6); }
};
template <class T>
struct caster<std::vector<T>> {
    static ref out(const std::vector<T> &v) {
        ref list = checked(PyList_New((ptrdiff_t)v.size()));
        for (size_t i = 0; i < v.size(); i++)
            PyList_SetItem(list.get(), (ptrdiff_t)i, caster<T>::out(v[i]).release());
        return list;
    }
    static std::vector<T> in(PyObject *o) {
        std::vector<T> v;
        ptrdiff_t n = PySequence_Size(o);
        if (n < 0) throw python_error();
        for (ptrdiff_t i = 0; i < n; i++) v.push_back(caster<T>::in(checked(PySequence_GetItem(o, i)).get()));
        return v;
    }
};
template <class T>
struct caster<std::optional<T>> {
    static ref out(const std::optional<T> &v) { return v ? caster<T>::out(*v) : borrowed(&_Py_NoneStruct); }
    static std::optional<T> in(PyObject *o) {
        if (o == &_Py_NoneStruct) return std::nullopt;
        return caster<T>::in(o);
    }
};
template <class... T>
struct caster<std::tuple<T...>> {
    static ref out(const std::tuple<T...> &v) { return all(v, std::index_sequence_for<T...>()); }
    template <size_t... I>
    static ref all(const std::tuple<T...> &v, std::index_sequence<I...>) {
        ref tuple = checked(PyTuple_New((ptrdiff_t)sizeof...(T)));
        (PyTuple_SetItem(tuple.get(), (ptrdiff_t)I, caster<T>::out(std::get<I>(v)).release()), ...);
        return tuple;
    }
};
template <class A, class B>
struct caster<std::pair<A, B>> {
    static ref out(const std::pair<A, B> &v) {
        return caster<std::tuple<A, B>>::out(std::tuple<A, B>(v.first, v.second));
    }
};

template <class... A>
ref call(PyObject *f, const A &...a) {
    ref tuple = checked(PyTuple_New((ptrdiff_t)sizeof...(A)));
    ptrdiff_t i = 0;
    (PyTuple_SetItem(tuple.get(), i++, caster<A>::out(a).release()), ...);
    return checked(PyObject_Call(f, tuple.get(), nullptr));
}

/* A C++ function as one that takes and gives Python objects: nullptr with an exception set when it throws. */
template <class R, class... A, size_t... I>
PyObject *invoke(R (*f)(A...), PyObject *arguments, std::index_sequence<I...>) {
    try {
        if (PySequence_Size(arguments) != (ptrdiff_t)sizeof...(A))
            throw std::runtime_error("takes " + std::to_string(sizeof...(A)) + " arguments");
        std::tuple<std::decay_t<A>...> values{
            caster<std::decay_t<A>>::in(checked(PySequence_GetItem(arguments, (ptrdiff_t)I)).get())...};
        (void)values;
        if constexpr (std::is_void_v<R>) {
            f(std::get<I>(values)...);
            Py_IncRef(&_Py_NoneStruct);
            return &_Py_NoneStruct;
        } else
            return caster<std::decay_t<R>>::out(f(std::get<I>(values)...)).release();
    } catch (const python_error &) {
        return nullptr;
    } catch (const std::exception &e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }
}
template <class R, class... A>
PyObject *bound(R (*f)(A...), PyObject *arguments) {
    return invoke(f, arguments, std::index_sequence_for<A...>());
}

} // namespace kernelrl

#define KERNELRL_BIND(name)                                                                                        \
    extern "C" __attribute__((visibility("default"))) PyObject *kernelrl_call_##name(PyObject *arguments) {        \
        return kernelrl::bound(&name, arguments);                                                                  \
    }

namespace at {

inline Tensor made(const char *name, IntArrayRef s, const TensorOptions &o, const double *fill) {
    using namespace kernelrl;
    ref keywords = checked(PyDict_New());
    if (o.type_) PyDict_SetItemString(keywords.get(), "dtype", caster<ScalarType>::out(*o.type_).get());
    if (o.device_) PyDict_SetItemString(keywords.get(), "device", caster<std::string>::out(o.device_->str()).get());
    ref arguments = checked(PyTuple_New(fill ? 2 : 1));
    PyTuple_SetItem(arguments.get(), 0, caster<std::vector<int64_t>>::out(s.vec()).release());
    if (fill) PyTuple_SetItem(arguments.get(), 1, caster<double>::out(*fill).release());
    return Tensor(checked(PyObject_Call(torch_attribute(name).get(), arguments.get(), keywords.get())));
}
inline Tensor like(const char *name, const Tensor &t) {
    return Tensor(kernelrl::call(kernelrl::torch_attribute(name).get(), t));
}
inline Tensor empty(IntArrayRef s, const TensorOptions &o = {}) { return made("empty", s, o); }
inline Tensor zeros(IntArrayRef s, const TensorOptions &o = {}) { return made("zeros", s, o); }
inline Tensor ones(IntArrayRef s, const TensorOptions &o = {}) { return made("ones", s, o); }
inline Tensor full(IntArrayRef s, double v, const TensorOptions &o = {}) { return made("full", s, o, &v); }
inline Tensor empty_like(const Tensor &t) { return like("empty_like", t); }
inline Tensor zeros_like(const Tensor &t) { return like("zeros_like", t); }
inline Tensor ones_like(const Tensor &t) { return like("ones_like", t); }
inline Tensor empty_like(const Tensor &t, const TensorOptions &o) {
    return empty(t.sizes(), TensorOptions(o.type_.value_or(t.scalar_type())).device(o.device_.value_or(t.device())));
}
inline Tensor zeros_like(const Tensor &t, const TensorOptions &o) {
    return zeros(t.sizes(), TensorOptions(o.type_.value_or(t.scalar_type())).device(o.device_.value_or(t.device())));
}
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }

} // namespace at

namespace torch {
using namespace at;
using at::Tensor;
} // namespace torch

using c10::ScalarType;

#define TORCH_CHECK(condition, ...)                                                       \
    do {                                                                                  \
        if (!(condition)) c10::fail(c10::joined("" __VA_OPT__(, ) __VA_ARGS__));          \
    } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT(condition) TORCH_CHECK(condition, #condition)
#define AT_ERROR(...) c10::fail(c10::joined(__VA_ARGS__))
#define CHECK_EQ(a, b) TORCH_CHECK((a) == (b), #a " == " #b)

#define KERNELRL_CASE(value, type, ...)     \
    case value: {                           \
        using scalar_t = type;              \
        return __VA_ARGS__();               \
    }
#define KERNELRL_DISPATCH(TYPE, NAME, CASES)                            \
    [&] {                                                               \
        switch (TYPE) {                                                 \
            CASES default : c10::fail(std::string(NAME) + ": type");    \
        }                                                               \
    }()
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...)                                                                  \
    KERNELRL_DISPATCH(TYPE, NAME,                                                                                    \
                      KERNELRL_CASE(c10::kFloat, float, __VA_ARGS__) KERNELRL_CASE(c10::kDouble, double, __VA_ARGS__))

namespace pybind11 {
struct arg {
    explicit arg(const char *) {}
    template <class T>
    arg &operator=(const T &) {
        return *this;
    }
};
/* Functions that the source binds by itself, by name. */
struct module_ {
    struct entry {
        std::string name;
        void *function;
        PyObject *(*call)(void *, PyObject *);
    };
    std::vector<entry> entries;
    template <class R, class... A, class... X>
    module_ &def(const char *name, R (*f)(A...), const X &...) {
        entries.push_back({name, (void *)f, [](void *p, PyObject *a) { return kernelrl::bound((R(*)(A...))p, a); }});
        return *this;
    }
    const char *&doc() {
        static const char *text;
        return text;
    }
};
} // namespace pybind11
namespace py = pybind11;
#define TORCH_EXTENSION_NAME kernelrl_extension
#define PYBIND11_MODULE(name, m)                                                                                      \
    static void kernelrl_fill(pybind11::module_ &m);                                                                  \
    extern "C" __attribute__((visibility("default"))) PyObject *kernelrl_module(PyObject *arguments) {                \
        static pybind11::module_ module;                                                                              \
        if (module.entries.empty()) kernelrl_fill(module);                                                            \
        kernelrl::ref wanted = kernelrl::checked(PySequence_GetItem(arguments, 0));                                   \
        if (wanted.get() == &_Py_NoneStruct) {                                                                        \
            std::vector<std::string> names;                                                                           \
            for (const auto &e : module.entries) names.push_back(e.name);                                             \
            return kernelrl::caster<std::vector<std::string>>::out(names).release();                                  \
        }                                                                                                             \
        kernelrl::ref rest = kernelrl::checked(PySequence_GetItem(arguments, 1));                                     \
        for (const auto &e : module.entries)                                                                          \
            if (e.name == kernelrl::caster<std::string>::in(wanted.get())) return e.call(e.function, rest.get());     \
        PyErr_SetString(PyExc_RuntimeError, "no such function");                                                      \
        return nullptr;                                                                                               \
    }                                                                                                                 \
    static void kernelrl_fill(pybind11::module_ &m)

#ifdef __CUDACC__
#include <cuda_runtime.h>
namespace at {
namespace cuda {
struct CUDAStream {
    cudaStream_t stream_;
    operator cudaStream_t() const { return stream_; }
    cudaStream_t stream() const { return stream_; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) {
    using namespace kernelrl;
    static PyObject *current = nullptr;
    if (!current) current = attribute(torch_attribute("cuda").get(), "current_stream").release();
    ref stream = call(current);
    return {(cudaStream_t)(uintptr_t)PyLong_AsUnsignedLongLong(attribute(stream.get(), "cuda_stream").get())};
}
struct OptionalCUDAGuard {
    template <class T>
    explicit OptionalCUDAGuard(const T &) {}
};
struct CUDAGuard {
    template <class T>
    explicit CUDAGuard(const T &) {}
};
} // namespace cuda
template <class T>
inline c10::Device device_of(const T &t) {
    return t.device();
}
} // namespace at
namespace c10 {
namespace cuda {
using at::cuda::CUDAGuard;
using at::cuda::CUDAStream;
using at::cuda::getCurrentCUDAStream;
using at::cuda::OptionalCUDAGuard;
} // namespace cuda
} // namespace c10
#define C10_CUDA_CHECK(expression)                                                 \
    do {                                                                           \
        cudaError_t kernelrl_error = (expression);                                 \
        if (kernelrl_error != cudaSuccess) c10::fail(cudaGetErrorString(kernelrl_error)); \
    } while (0)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define TORCH_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#endif
