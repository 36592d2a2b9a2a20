//! The binaries under test, and files of the checkout that they use.

use std::path::{Path, PathBuf};

use super::StackError;

/// The variable with the directory of the binaries.
const VARIABLE: &str = "SYMDEPOT_BINARIES";

/// The directory with the binaries of the functions and of the stack.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Returns the directory in `SYMDEPOT_BINARIES`. A relative path is resolved against the
    /// current directory, then against the checkout.
    ///
    /// # Errors
    /// [`StackError::NoBinaries`] if the variable is not set, [`StackError::MissingBinary`] if a
    /// binary is missing.
    pub fn from_env() -> Result<Self, StackError> {
        let named = std::env::var_os(VARIABLE)
            .filter(|value| !value.is_empty())
            .ok_or(StackError::NoBinaries)?;
        let named = PathBuf::from(named);
        let here = named.is_dir().then(|| named.clone());
        Self::in_folder(&here.unwrap_or_else(|| checkout().join(&named)))
    }

    /// Uses the binaries in a directory.
    ///
    /// # Errors
    /// [`StackError::MissingBinary`] if a binary is missing.
    pub fn in_folder(folder: &Path) -> Result<Self, StackError> {
        let binaries = Self {
            folder: folder.canonicalize().unwrap_or_else(|_| folder.to_owned()),
        };
        for name in ["local-stack", "symbolicate", "derive", "prune"] {
            let path = binaries.get(name);
            if !path.is_file() {
                return Err(StackError::MissingBinary(path));
            }
        }
        Ok(binaries)
    }

    /// Returns the directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a binary.
    pub fn get(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Returns the root of the checkout that this program was built from.
pub fn checkout() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// Returns the path of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    checkout().join("tests/fixtures").join(name)
}

/// Returns the path of the stack's template.
pub fn template() -> PathBuf {
    checkout().join("infra/template.yaml")
}
