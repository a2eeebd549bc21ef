//! The folder of a report. Each file appears whole or not at all: it is written beside its place
//! and then renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The folder to which the report's files are written.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the directory if it is missing, and checks that it is writable, so that a long
    /// measurement does not fail when its report is written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = Self { path: path.into() };
        fs::create_dir_all(path).map_err(|e| folder.failed("cannot make the report's folder", path, e))?;
        let probe = folder.beside("probe");
        File::create(&probe).map_err(|e| folder.failed("cannot write to the report's folder", path, e))?;
        fs::remove_file(&probe).map_err(|e| folder.failed("cannot write to the report's folder", path, e))?;
        Ok(folder)
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file, and replaces a file of the same name.
    pub fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let (beside, place) = (self.beside(name), self.file(name));
        let written = File::create(&beside)
            .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&beside, &place));
        written.map_err(|e| {
            // it may not be there; the first error is the one to tell
            let _ = fs::remove_file(&beside);
            self.failed("cannot write", &place, e)
        })
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.path.join(format!(".{name}.{}", std::process::id()))
    }

    fn failed(&self, what: &str, path: &Path, error: io::Error) -> io::Error {
        let remedy = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room there",
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => "that is a file; name a folder",
            io::ErrorKind::IsADirectory => "a folder is in its place; move it away",
            _ => "name a folder that you may write to",
        };
        io::Error::new(error.kind(), format!("{what} {}: {error}; {remedy}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, which is removed at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pregrant-folder-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let place = Place::new("replace");
        let folder = Folder::open(&place.0.join("deep/er")).unwrap();
        folder.put("index.html", b"one, the longer").unwrap();
        folder.put("index.html", b"two").unwrap();
        assert_eq!(fs::read(folder.file("index.html")).unwrap(), b"two");
        assert_eq!(fs::read_dir(&folder.path).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_named_with_a_remedy() {
        let place = Place::new("errors");
        fs::create_dir_all(place.0.join("report/index.html/in-the-way")).unwrap();
        fs::write(place.0.join("file"), "").unwrap();
        let error = Folder::open(&place.0.join("file")).unwrap_err().to_string();
        assert!(error.contains("/file:") && error.contains("name a folder"), "{error}");
        let folder = Folder::open(&place.0.join("report")).unwrap();
        let error = folder.put("index.html", b"").unwrap_err().to_string();
        assert!(error.contains("report/index.html:") && error.contains("; "), "{error}");
        assert_eq!(fs::read_dir(&folder.path).unwrap().count(), 1, "something is left beside it");
    }
}
