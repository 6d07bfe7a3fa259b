//! Where the default model lies once it was fetched.

use std::ffi::OsString;
use std::path::PathBuf;

/// File name of the default model, SmolLM2-135M-Instruct quantized to Q4_1.
pub const DEFAULT_MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// `${XDG_CACHE_HOME:-~/.cache}/nano-serve/` + [`DEFAULT_MODEL_FILE`], whether
/// it exists or not; `None` where neither variable gives a directory.
pub fn default_model_path() -> Option<PathBuf> {
    path_in(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

fn path_in(xdg_cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG base directory specification has relative paths ignored.
    let cache = xdg_cache_home
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let cache = match (cache, home) {
        (Some(cache), _) => cache,
        (None, Some(home)) if !home.is_empty() => PathBuf::from(home).join(".cache"),
        _ => return None,
    };
    Some(cache.join("nano-serve").join(DEFAULT_MODEL_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdg_first_then_home() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            path_in(xdg.map(Into::into), home.map(Into::into))
                .map(|path| path.to_string_lossy().into_owned())
        };
        let file = |dir: &str| Some(format!("{dir}/nano-serve/{DEFAULT_MODEL_FILE}"));
        assert_eq!(of(Some("/x"), Some("/h")), file("/x"));
        assert_eq!(of(None, Some("/h")), file("/h/.cache"));
        assert_eq!(of(Some("relative"), Some("/h")), file("/h/.cache"));
        assert_eq!(of(Some(""), Some("")), None);
        assert_eq!(of(None, None), None);
    }
}
