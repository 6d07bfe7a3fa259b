#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nano_fuzz::chat_template::run(bytes));
