//! The sampler, on threads of this process: what it shows is true, it costs
//! sleepers nothing, and its handler neither allocates nor locks.

mod burn;
mod collected;
mod handler_is_safe;
mod stacks_are_true;
mod threads_come_and_go;
