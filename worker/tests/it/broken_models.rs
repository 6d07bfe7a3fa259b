//! Models whose files contradict themselves: each ends in one line that names
//! the file, or the directory and the tensor.

use crate::driver::{self, worker_config};
use crate::golden;
use crate::ops::serving;
use nano_ipc::config::Dtype;
use nano_ipc::lifecycle::Lifecycle;
use nano_worker::load::load_model;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const WEIGHTS: &str = "model.safetensors";

/// A copy of a golden model, to be broken.
struct Model {
    dir: TempDir,
}

impl Model {
    fn copy(name: &str) -> Model {
        let dir = tempfile::tempdir().expect("temporary directory");
        for entry in fs::read_dir(golden::path(name)).expect("golden model") {
            let from = entry.expect("a file").path();
            let to = dir.path().join(from.file_name().expect("a name"));
            fs::copy(from, to).expect("copied");
        }
        Model { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.file(name), bytes).expect("written");
    }

    /// Changes a JSON file.
    fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(self.file(name)).expect("text");
        let mut json = serde_json::from_str(&text).expect("JSON");
        change(&mut json);
        self.write(name, json.to_string());
    }

    /// Writes the weights anew, as `change` turns the list of tensors.
    fn rewrite(&self, change: impl FnOnce(&mut Vec<(String, TensorView<'_>)>)) {
        let bytes = fs::read(self.file(WEIGHTS)).expect("weights");
        let mut tensors = SafeTensors::deserialize(&bytes).expect("good").tensors();
        change(&mut tensors);
        self.write(
            WEIGHTS,
            safetensors::serialize(tensors, None).expect("good"),
        );
    }

    /// The error of loading it, with DIR for its path.
    fn error(&self) -> String {
        let error = load(self.dir.path()).expect_err("it is broken");
        assert!(!error.contains('\n'), "{error:?}");
        let dir = self.dir.path().display().to_string();
        assert!(error.starts_with(&dir), "{error}");
        error.replace(&dir, "DIR")
    }
}

fn load(path: &Path) -> Result<(), String> {
    let config = worker_config(path, Dtype::Auto, driver::Limits::default());
    let lifecycle = Lifecycle::new(|_| ()).expect("eventfd");
    let loaded = load_model(serving(), &config, &lifecycle);
    loaded.map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_file_that_was_cut_is_named() {
    for (name, file) in [
        ("models/tiny-llama", WEIGHTS),
        (
            "models/tiny-llama-sharded",
            "model-00002-of-00002.safetensors",
        ),
    ] {
        let model = Model::copy(name);
        let whole = fs::read(model.file(file)).expect("weights");
        for len in [0, 7, 8, 9, 500, whole.len() / 2, whole.len() - 1] {
            model.write(file, &whole[..len]);
            let error = model.error();
            let expected = format!("DIR/{file}: not a safetensors file: ");
            assert!(error.starts_with(&expected), "{len} bytes: {error}");
        }
    }
}

/// Nothing is allocated for what a header claims before it is compared with the
/// file: these would need more memory than any machine has.
#[test]
fn absurd_sizes_are_refused_at_once() {
    let model = Model::copy("models/tiny-llama");
    let file = |header: &str| [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    for bytes in [
        u64::MAX.to_le_bytes().to_vec(),
        (1u64 << 40).to_le_bytes().to_vec(),
        file(r#"{"t":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#),
        file(r#"{"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#),
        file(r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#),
        file(
            r#"{"t":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#,
        ),
    ] {
        model.write(WEIGHTS, bytes);
        let error = model.error();
        assert!(
            error.starts_with("DIR/model.safetensors: not a safetensors file: "),
            "{error}"
        );
    }
}

#[test]
fn tensors_that_are_missing_or_have_another_shape_are_named() {
    const NAME: &str = "model.layers.1.mlp.up_proj.weight";
    let model = Model::copy("models/tiny-llama");
    model.rewrite(|tensors| tensors.retain(|(name, _)| name != NAME));
    assert_eq!(
        model.error(),
        format!("DIR: {NAME}: this tensor is missing")
    );

    let model = Model::copy("models/tiny-llama");
    model.rewrite(|tensors| {
        let found = tensors.iter_mut().find(|(name, _)| name == NAME);
        let (_, tensor) = found.expect("it is there");
        let transposed = TensorView::new(tensor.dtype(), vec![64, 128], tensor.data());
        *tensor = transposed.expect("as many bytes");
    });
    assert_eq!(
        model.error(),
        format!("DIR: {NAME}: has shape [64, 128], the configuration asks for [128, 64]")
    );
}

#[test]
fn a_tensor_in_two_files_is_named() {
    let model = Model::copy("models/tiny-llama-sharded");
    let shard = "model-00001-of-00002.safetensors";
    fs::copy(model.file(shard), model.file("again.safetensors")).expect("copied");
    model.change("model.safetensors.index.json", |index| {
        index["weight_map"]["more"] = json!("again.safetensors");
    });
    let error = model.error();
    assert!(error.starts_with(&format!("DIR/{shard}: ")), "{error}");
    assert!(error.ends_with(": is in two files"), "{error}");
}

/// Whatever number a dimension has but the right one.
#[test]
fn every_dimension_is_checked() {
    let config = "config.json";
    let copy = Model::copy("models/tiny-llama");
    let good = fs::read_to_string(copy.file(config)).expect("text");
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "num_hidden_layers",
        "vocab_size",
        "head_dim",
    ] {
        for value in [
            json!(0),
            json!(-1),
            json!(3),
            json!(1 << 20),
            json!(u32::MAX),
            json!(1u64 << 40),
            json!(1e300),
            json!("64"),
            json!([64]),
        ] {
            copy.write(config, &good);
            copy.change(config, |config| config[field] = value.clone());
            let error = copy.error();
            let names_it = error.starts_with(&format!("DIR/config.json: {field}"))
                || error.contains("the configuration asks for")
                || error.contains("this tensor is missing")
                // Heads of another number are of another size.
                || error.contains("heads cannot share")
                || error.starts_with("DIR/config.json: head_dim");
            assert!(names_it, "{field} {value}: {error}");
        }
    }
}

#[test]
fn a_gguf_file_that_was_cut_is_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("cut.gguf");
    let whole = fs::read(golden::path("gguf/tiny-llama.Q4_1.gguf")).expect("a model");
    for len in (0..whole.len()).step_by(whole.len() / 97) {
        fs::write(&path, &whole[..len]).expect("written");
        let error = load(&path).expect_err("it is cut");
        assert!(
            error.starts_with(&format!("{}: ", path.display())),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error:?}");
    }
}
