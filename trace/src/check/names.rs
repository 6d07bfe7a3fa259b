//! Equal texts share their bytes.

use crate::timeline::Name;
use std::collections::HashSet;

#[derive(Default)]
pub(super) struct Names(HashSet<Name>);

impl Names {
    pub(super) fn get(&mut self, text: &str) -> Name {
        if let Some(name) = self.0.get(text) {
            return name.clone();
        }
        let name = Name::from(text);
        self.0.insert(name.clone());
        name
    }
}
