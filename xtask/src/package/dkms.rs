//! A package with a kernel module: its Rust prebuilt, its C built by DKMS, so that who installs it
//! needs no Rust.
//!
//! ```text
//!   /usr/src/NAME-VERSION      C of the module, NAME.core, dkms.conf
//!   /etc/kernel                says which kernels have none
//!   /usr/share/NAME            scripts of the package
//!   ...                        what one module alone needs: `own`
//! ```
//! `dist/dkms` has the files of all such packages, `dist/guest` and `dist/back` those of one.

use super::module::Module;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, read, run, write};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A file of a package: its name in `dist`, where it is installed, its mode.
pub(super) type Own = (&'static str, &'static str, u32);

/// The version of the workspace.
fn version(w: &Workspace) -> Result<String, String> {
    let manifest = read(&w.root().join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    Ok(line.ok_or("Cargo.toml has no version")?.trim_matches('"').to_string())
}

/// Builds the package of a module. `core` is its part in Rust, `sources` are its C and its Kbuild.
pub(super) fn build(
    w: &Workspace,
    module: &Module,
    core: &Path,
    sources: &[PathBuf],
) -> Result<PathBuf, String> {
    tool::debian(w, "dpkg-deb", "dpkg")?;
    let (name, version) = (module.name, version(w)?);
    let dir = w.target().join("package");
    let root = dir.join(module.folder);
    empty_dir(&root)?;
    let words = Words::of(module, &version);
    let put = |from: &Path, to: &str, mode: u32| words.put(from, &root.join(to), mode);
    let source = format!("usr/src/{name}-{version}");
    let file_name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The self-test needs a core of its own, and no host has a use for it.
    let is_test = |path: &Path| file_name(path).starts_with("selftest");
    for file in sources.iter().map(PathBuf::as_path).filter(|path| !is_test(path)).chain([core]) {
        put(file, &format!("{source}/{}", file_name(file)), 0o644)?;
    }
    let of_all = |name: &str| w.root().join("dist/dkms").join(name);
    let own = |name: &str| w.root().join("dist").join(module.folder).join(name);
    put(&of_all("dkms.conf"), &format!("{source}/dkms.conf"), 0o644)?;
    put(&of_all("says-kernels"), &format!("usr/share/{name}/says-kernels"), 0o755)?;
    let hooks = [format!("etc/kernel/header_postinst.d/{name}"), format!("etc/kernel/postinst.d/zz-{name}")];
    for hook in &hooks {
        put(&of_all("kernel-hook"), hook, 0o755)?;
    }
    for (file, to, mode) in module.own {
        put(&own(file), to, *mode)?;
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        put(&w.root().join(licence), &format!("usr/share/doc/{}/{licence}", module.package()), 0o644)?;
    }
    put(&own("control"), "DEBIAN/control", 0o644)?;
    put(&own("postrm"), "DEBIAN/postrm", 0o755)?;
    for script in ["postinst", "prerm"] {
        put(&of_all(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let of_etc = module.own.iter().map(|(_, to, _)| *to).filter(|to| to.starts_with("etc/"));
    let of_etc = of_etc.chain(hooks.iter().map(String::as_str));
    write(&root.join("DEBIAN/conffiles"), of_etc.map(|file| format!("/{file}\n")).collect::<String>())?;
    let package = dir.join(format!("{}_{version}_amd64.deb", module.package()));
    run(w.program("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package))?;
    println!("package: {}", package.display());
    Ok(package)
}

/// What stands in place of a file's placeholders.
struct Words([(&'static str, String); 6]);

impl Words {
    fn of(module: &Module, version: &str) -> Self {
        // As a pattern of dkms.conf, which knows a kernel by the first numbers of its name.
        let pattern = module.kernels.joined(|kernel| kernel.replace('.', r"\."), "|");
        Self([
            ("@VERSION@", version.into()),
            ("@NAME@", module.name.into()),
            ("@MODULE@", module.module.into()),
            ("@OTHER@", module.other.into()),
            ("@KERNELS@", pattern),
            ("@LINUX@", module.kernels.joined(String::from, ", ")),
        ])
    }

    fn in_place(&self, text: &str) -> String {
        self.0.iter().fold(text.to_string(), |text, (word, by)| text.replace(word, by))
    }

    /// Copies a file, and replaces the placeholders in it.
    fn put(&self, from: &Path, to: &Path, mode: u32) -> Result<(), String> {
        let said = |e: std::io::Error| format!("{} to {}: {e}", from.display(), to.display());
        fs::create_dir_all(to.parent().unwrap_or(to)).map_err(said)?;
        let bytes = fs::read(from).map_err(said)?;
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => self.in_place(&text).into_bytes(),
            Err(binary) => binary.into_bytes(),
        };
        write(to, bytes)?;
        fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(said)
    }
}

#[cfg(test)]
mod tests {
    use super::super::module::{BACK, GUEST};
    use super::*;

    #[test]
    fn a_file_of_all_packages_has_the_words_of_one() {
        let w = Workspace::find();
        let text = read(&w.root().join("dist/dkms/dkms.conf")).unwrap();
        for (module, built, kernels) in [
            (&GUEST, "\"pregrant\"", r#""^(5\.10|6\.1|6\.12|7\.2|7\.3)\.""#),
            (&BACK, "\"pregrant_back\"", r#""^(6\.1|6\.12|7\.2|7\.3)\.""#),
        ] {
            let conf = Words::of(module, "1.2.3").in_place(&text);
            assert!(conf.contains(&format!("BUILT_MODULE_NAME[0]={built}\n")), "{conf}");
            assert!(conf.contains(&format!("BUILD_EXCLUSIVE_KERNEL={kernels}\n")), "{conf}");
        }
    }

    #[test]
    fn no_file_of_a_package_has_a_placeholder_without_words() {
        let w = Workspace::find();
        for module in [&GUEST, &BACK] {
            for folder in ["dkms", module.folder] {
                for file in fs::read_dir(w.root().join("dist").join(folder)).unwrap().flatten() {
                    let text = Words::of(module, "1.2.3").in_place(&read(&file.path()).unwrap());
                    let left = text.split('@').skip(1).step_by(2);
                    let left: Vec<_> =
                        left.filter(|word| word.chars().all(|c| c.is_ascii_uppercase())).collect();
                    assert!(left.iter().all(|word| word.is_empty()), "{}: {left:?}", file.path().display());
                }
            }
        }
    }
}
