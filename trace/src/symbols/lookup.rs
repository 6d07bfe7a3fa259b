//! Names and lines of one module's addresses.

use super::modules::{Module, openable};
use addr2line::Loader;
use object::{Object, ObjectSymbol};

/// A function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) function: String,
    pub(super) file: Option<String>,
    pub(super) line: u32,
}

/// See the module.
pub(super) enum Lookup {
    /// Line tables and symbols of a file.
    Tables(Box<Loader>),
    /// Symbols of a module in memory: address, size, name.
    Symbols(Vec<(u64, u64, String)>),
    /// Nothing is known.
    Nothing,
}

impl Lookup {
    pub(super) fn new(module: &Module) -> Lookup {
        if let Some(bytes) = module.memory() {
            return Lookup::Symbols(symbols(bytes).unwrap_or_default());
        }
        match Loader::new(openable(module.path())) {
            Ok(loader) => Lookup::Tables(Box::new(loader)),
            Err(_) => Lookup::Nothing,
        }
    }

    /// The functions at an address of the file, the innermost first.
    pub(super) fn functions(&self, address: u64) -> Vec<Function> {
        let symbol = match self {
            Lookup::Tables(tables) => {
                let found = by_lines(tables, address);
                if !found.is_empty() {
                    return found;
                }
                tables.find_symbol(address)
            }
            Lookup::Symbols(symbols) => symbols
                .iter()
                .find(|(start, size, _)| (*start..start + size).contains(&address))
                .map(|(_, _, name)| name.as_str()),
            Lookup::Nothing => None,
        };
        let function = |name| Function {
            function: demangled(name),
            ..Function::default()
        };
        symbol.map(function).into_iter().collect()
    }
}

/// By the line tables; a function whose name they do not tell is left out, so that
/// its caller's line stands for it. They hold short names, so that of the
/// function around all inlined ones is taken from its symbol, which has its path.
fn by_lines(tables: &Loader, address: u64) -> Vec<Function> {
    let mut found = Vec::new();
    let Ok(mut frames) = tables.find_frames(address) else {
        return found;
    };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|f| f.raw_name().ok());
        let location = frame.location.as_ref();
        found.push(Function {
            function: name.map(|name| demangled(&name)).unwrap_or_default(),
            file: location.and_then(|l| l.file).map(str::to_owned),
            line: location.and_then(|l| l.line).unwrap_or(0),
        });
    }
    if let (Some(outermost), Some(symbol)) = (found.last_mut(), tables.find_symbol(address)) {
        outermost.function = demangled(symbol);
    }
    found.retain(|function| !function.function.is_empty());
    found
}

/// Without Rust's hash; names of other languages stay as they are.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

fn symbols(bytes: &[u8]) -> Option<Vec<(u64, u64, String)>> {
    let object = object::File::parse(bytes).ok()?;
    let symbol = |symbol: object::Symbol<'_, '_>| {
        let name = symbol.name().ok()?.to_owned();
        (symbol.size() > 0).then_some((symbol.address(), symbol.size(), name))
    };
    Some(object.dynamic_symbols().filter_map(symbol).collect())
}
