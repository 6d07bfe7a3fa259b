//! The worker against golden data of real architectures, and its loop against
//! a core that plays by the book or does not.

mod batching;
mod broken_models;
mod broken_row;
mod dequantize;
mod driver;
mod failing;
mod gguf;
mod golden;
mod ops;
mod serve;
mod smollm2;
mod tiny_llama;
