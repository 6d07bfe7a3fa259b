//! Models by name, fetched from a model hub into its usual cache.
//!
//! Only files that serving reads are fetched: configuration, tokenizer, chat
//! template, and the safetensors or the one GGUF file. What the cache has whole
//! is used without asking the hub.

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use nano_model::ModelSource;
use nano_model::model_dir::{SINGLE_WEIGHTS, WEIGHTS_INDEX, shard_names};
use std::cell::Cell;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PUBLIC_HUB: &str = "https://huggingface.co";
const MAIN: &str = "main";
const CONFIG: &str = "config.json";
/// Small files that serving reads where a repository has them.
const SMALL_FILES: [&str; 6] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// A model's name on a hub: `org/name`, with an optional `@revision`, and with
/// `:FILE` for one GGUF file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    id: String,
    revision: String,
    /// A file's name, or a part that only one file's name has (`Q4_K_M`).
    file: Option<String>,
}

impl HubModel {
    /// `None` where the text cannot be a model's name.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (id, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        let (org, name) = id.split_once('/')?;
        let word = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            part.chars().all(plain) && part.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        let revision_ok = revision.split('/').all(word);
        let ok = word(org) && word(name) && revision_ok && file.is_none_or(word);
        ok.then(|| Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

/// Why a model could not be fetched: one line.
#[derive(Debug, thiserror::Error)]
#[error("{model}: {reason}")]
pub struct HubError {
    model: String,
    reason: String,
}

/// A model hub, and where its files are kept.
pub struct Hub {
    api: Api,
    cache: Cache,
    endpoint: String,
    /// Takes lines that say how far a download is.
    report: Box<dyn Fn(&str)>,
}

impl Hub {
    /// As the environment says: `HF_ENDPOINT`, `HF_HOME`, and `HF_TOKEN` or the
    /// token file in `HF_HOME`. `report` takes lines that say how far a download is.
    ///
    /// # Errors
    /// When the key cannot be sent.
    pub fn from_env(
        variable: impl Fn(&str) -> Option<String>,
        report: impl Fn(&str) + 'static,
    ) -> Result<Self, HubError> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| PUBLIC_HUB.into());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let cache = match variable("HF_HOME") {
            Some(home) => Cache::new(PathBuf::from(home).join("hub")),
            None => Cache::default(),
        };
        let token = variable("HF_TOKEN")
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty())
            .or_else(|| cache.token());
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .with_user_agent("nano-serve", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| HubError {
                model: endpoint.clone(),
                reason: error.to_string(),
            })?;
        Ok(Self {
            api,
            cache,
            endpoint,
            report: Box::new(report),
        })
    }

    /// The local path of a model: a directory in Hugging Face layout, or a GGUF file.
    ///
    /// # Errors
    /// When the cache does not have all of it, and the hub, the network or the
    /// disk do not let it be fetched.
    pub fn fetch(&self, model: &HubModel) -> Result<PathBuf, HubError> {
        if let Some(path) = self.cached(model) {
            return Ok(path);
        }
        self.download(model).map_err(|reason| HubError {
            model: model.to_string(),
            reason,
        })
    }

    fn repo(&self, model: &HubModel, revision: &str) -> Repo {
        Repo::with_revision(model.id.clone(), RepoType::Model, revision.to_owned())
    }

    /// The model's path, if the cache has all of it.
    fn cached(&self, model: &HubModel) -> Option<PathBuf> {
        let cached = self.cache.repo(self.repo(model, &model.revision));
        if let Some(file) = model.file.as_deref().filter(|file| is_gguf(file)) {
            return cached.get(file);
        }
        let dir = cached.get(CONFIG)?.parent()?.to_owned();
        let whole = ModelSource::open(&dir).is_ok_and(|source| source.validate().is_ok());
        whole.then_some(dir)
    }

    /// Every file comes from the commit that the revision names now, and the
    /// cache learns that commit's name last: a model that changes, or a
    /// download that is cut, leaves no mixture behind.
    fn download(&self, model: &HubModel) -> Result<PathBuf, String> {
        let say = |error: ApiError| self.reason(model, &error);
        let info = self.api.repo(self.repo(model, &model.revision)).info();
        let info = info.map_err(say)?;
        let names: Vec<&str> = info
            .siblings
            .iter()
            .map(|file| file.rfilename.as_str())
            .filter(|name| !name.contains('/'))
            .collect();
        let repo = self.api.repo(self.repo(model, &info.sha));
        let pinned = self.cache.repo(self.repo(model, &info.sha));
        let get = |name: &str| fetch_file(&pinned, &repo, name, &self.report).map_err(say);

        let path = match gguf_of(model, &names)? {
            Some(file) => get(file)?,
            None => {
                for name in SMALL_FILES.iter().filter(|name| names.contains(name)) {
                    get(name)?;
                }
                let weights = match names.contains(&SINGLE_WEIGHTS) {
                    true => vec![SINGLE_WEIGHTS.to_owned()],
                    false if names.contains(&WEIGHTS_INDEX) => {
                        shard_names(&get(WEIGHTS_INDEX)?).map_err(|error| error.to_string())?
                    }
                    false => return Err("has no safetensors".into()),
                };
                for name in weights {
                    get(&name)?;
                }
                let config = get(CONFIG)?;
                config.parent().unwrap_or(&config).to_owned()
            }
        };
        let named = self.cache.repo(self.repo(model, &model.revision));
        named
            .create_ref(&info.sha)
            .map_err(|error| say(ApiError::IoError(error)))?;
        Ok(path)
    }

    fn reason(&self, model: &HubModel, error: &ApiError) -> String {
        let status = match error {
            ApiError::RequestError(error) => match **error {
                ureq::Error::StatusCode(status) => Some(status),
                _ => None,
            },
            _ => None,
        };
        let endpoint = &self.endpoint;
        match (status, error) {
            (Some(401), _) => format!(
                "{endpoint} refuses access (401): the name is wrong, or the model needs a key \
                 in HF_TOKEN"
            ),
            (Some(403), _) => format!(
                "{endpoint} refuses access (403): its terms must be accepted at \
                 {endpoint}/{} by the owner of the key in HF_TOKEN",
                model.id
            ),
            (Some(404), _) => format!("not found at {endpoint} (404)"),
            (Some(status), _) => format!("{endpoint} answers with status {status}"),
            (None, ApiError::RequestError(error)) => {
                format!("cannot reach {endpoint}: {error}")
            }
            (None, ApiError::IoError(error)) => match error.kind() {
                ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::PermissionDenied
                | ErrorKind::NotADirectory
                | ErrorKind::ReadOnlyFilesystem => {
                    format!("cannot write to {}: {error}", self.cache.path().display())
                }
                _ => format!("the download broke off: {error}; start again to go on with it"),
            },
            (None, error) => format!("unexpected answer of {endpoint}: {error}"),
        }
    }
}

fn is_gguf(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The GGUF file that is meant, or none where the repository's safetensors are.
fn gguf_of<'a>(model: &HubModel, names: &[&'a str]) -> Result<Option<&'a str>, String> {
    let files: Vec<&str> = names.iter().copied().filter(|name| is_gguf(name)).collect();
    let matching = match &model.file {
        None if names.contains(&CONFIG) && names.iter().any(|n| n.ends_with(".safetensors")) => {
            return Ok(None);
        }
        None => files.clone(),
        Some(wanted) => match files.iter().find(|name| *name == wanted) {
            Some(exact) => vec![*exact],
            None => {
                let wanted = wanted.to_ascii_lowercase();
                let part = |name: &&str| name.to_ascii_lowercase().contains(&wanted);
                files.iter().copied().filter(part).collect()
            }
        },
    };
    match matching.as_slice() {
        [one] => Ok(Some(one)),
        [] if model.file.is_none() => Err("has neither safetensors nor GGUF files".into()),
        [] => Err(format!(
            "has no such GGUF file; it has: {}",
            files.join(", ")
        )),
        several => Err(format!(
            "several GGUF files, choose one by {}:FILE: {}",
            model.id,
            several.join(", ")
        )),
    }
}

/// A file of the cache, fetched if it is not there. One that is not as long as
/// the hub said is removed: the connection broke, and nobody noticed.
fn fetch_file(
    cache: &CacheRepo,
    repo: &ApiRepo,
    name: &str,
    report: &dyn Fn(&str),
) -> Result<PathBuf, ApiError> {
    if let Some(path) = cache.get(name) {
        return Ok(path);
    }
    let size = Cell::new(0);
    let lines = ProgressLines {
        name,
        report,
        size: &size,
        done: 0,
        last_line: Instant::now(),
    };
    let path = repo.download_with_progress(name, lines)?;
    let got = std::fs::metadata(&path)?.len();
    if got == size.get() {
        return Ok(path);
    }
    std::fs::remove_file(std::fs::canonicalize(&path)?)?;
    std::fs::remove_file(&path)?;
    Err(ApiError::IoError(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("{name}: {got} of {} bytes came", size.get()),
    )))
}

const PAUSE_BETWEEN_LINES: Duration = Duration::from_secs(2);

/// Says how far a download is, every few seconds and at its end.
struct ProgressLines<'a> {
    name: &'a str,
    report: &'a dyn Fn(&str),
    /// Bytes of the whole file, for who started the download.
    size: &'a Cell<u64>,
    done: u64,
    last_line: Instant,
}

impl ProgressLines<'_> {
    fn line(&mut self) {
        self.last_line = Instant::now();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let (done, size) = (megabytes(self.done), megabytes(self.size.get()));
        (self.report)(&format!(
            "fetching {}: {done:.1} of {size:.1} MB",
            self.name
        ));
    }
}

impl Progress for ProgressLines<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.size.set(size as u64);
        self.done = 0;
    }

    fn update(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.last_line.elapsed() >= PAUSE_BETWEEN_LINES {
            self.line();
        }
    }

    fn finish(&mut self) {
        self.line();
    }
}
