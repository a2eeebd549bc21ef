//! `cargo xtask package`: packages of Debian, made and tried.
//!
//! ```text
//!   module     pregrant-guest-dkms for guests, pregrant-back-dkms for hosts
//!   dkms       such a package: a kernel module, its Rust prebuilt, its C built by DKMS
//!   trial      a release's file system, in which packages are installed and removed
//! ```
//! Everything is below `target/package`.

mod dkms;
mod module;
mod trial;

use crate::linux;
use crate::rig;
use crate::workspace::Workspace;
use module::{BACK, GUEST, Module};
use std::path::{Path, PathBuf};
use trial::Initial;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Side {
    #[default]
    Guest,
    Back,
}

impl Side {
    fn module(self) -> &'static Module {
        match self {
            Self::Guest => &GUEST,
            Self::Back => &BACK,
        }
    }

    /// Builds the package of the module.
    fn build(self, w: &Workspace, core: &Path) -> Result<Package, String> {
        let sources = match self {
            Self::Guest => linux::sources(w)?,
            Self::Back => linux::sources_of_back(w)?,
        };
        let file = dkms::build(w, self.module(), core, &sources)?;
        Ok(Package { module: self.module(), file })
    }
}

/// A package that was built.
pub struct Package {
    module: &'static Module,
    file: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    side: Side,
    /// Releases of Debian in which the package is tried.
    releases: Vec<String>,
    initial: Initial,
}

impl Selection {
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut args = args.iter();
        let side = match args.next() {
            Some(&"guest") => Side::Guest,
            Some(&"back") => Side::Back,
            _ => return Err("package wants a name: guest, or back".into()),
        };
        let mut selection = Self { side, ..Self::default() };
        while let Some(arg) = args.next() {
            if *arg == "--dracut" && side == Side::Guest {
                selection.initial = Initial::Dracut;
                continue;
            }
            let name = args.next().filter(|_| *arg == "--try");
            let name =
                name.ok_or_else(|| format!("package {side:?} knows no {arg:?} like that").to_lowercase())?;
            let is_one = match side {
                Side::Guest => rig::is_release(name),
                Side::Back => rig::is_release_of_dom0(name).map_err(|e| {
                    format!("{e}; a host's module is for Linux 6.1 and newer, Debian 11 has 5.10")
                }),
            };
            is_one.map_err(|e| format!("--try takes a release: {e}"))?;
            selection.releases.push((*name).into());
        }
        Ok(selection)
    }
}

/// Builds the packages of the modules from Rust's parts of them.
pub fn all(w: &Workspace, objects: &[PathBuf]) -> Result<Vec<Package>, String> {
    let of = |side: Side| side.build(w, linux::core_of(objects, side.module().module)?);
    [Side::Guest, Side::Back].into_iter().map(of).collect()
}

/// Tries packages in a release, one after another, with the default tool for the initramfs.
pub fn play(w: &Workspace, release: &str, packages: &[Package]) -> Result<(), String> {
    trial::play(w, release, Initial::default(), packages)
}

/// Builds the package, and tries it in the selected releases.
pub fn make(w: &Workspace, selection: &Selection) -> Result<(), String> {
    let objects = linux::objects(w)?;
    let module = selection.side.module().module;
    let packages = [selection.side.build(w, linux::core_of(&objects, module)?)?];
    for name in &selection.releases {
        trial::play(w, name, selection.initial, &packages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Initial, Selection, Side};

    #[test]
    fn a_command_line_says_where_to_try() {
        let releases = vec!["11".to_string(), "13".into()];
        let parsed = Selection::parse(&["guest", "--try", "11", "--try", "13"]);
        assert_eq!(parsed, Ok(Selection { releases, ..Default::default() }));
        let parsed = Selection::parse(&["guest", "--try", "13-backports", "--dracut"]);
        let releases = vec!["13-backports".to_string()];
        let selection =
            Selection { releases: releases.clone(), initial: Initial::Dracut, ..Default::default() };
        assert_eq!(parsed, Ok(selection));
        assert_eq!(Selection::parse(&["guest"]), Ok(Selection::default()));
        let parsed = Selection::parse(&["back", "--try", "13-backports"]);
        assert_eq!(parsed, Ok(Selection { side: Side::Back, releases, ..Default::default() }));
        for wrong in
            [&[][..], &["dom0"], &["guest", "--try"], &["guest", "--try", "10"], &["guest", "now", "12"]]
        {
            assert!(Selection::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_host_is_of_debian_12_or_newer() {
        let said = Selection::parse(&["back", "--try", "11"]).unwrap_err();
        assert!(said.contains("no Debian 11; there are 12, 13") && said.contains("6.1 and newer"), "{said}");
        // Its package leaves the initial file system alone.
        let said = Selection::parse(&["back", "--dracut"]).unwrap_err();
        assert_eq!(said, "package back knows no \"--dracut\" like that");
    }
}
