//! Another release's headers, with the compiler and the tools that go with them: a file system of
//! its own, made by mmdebstrap from where this machine has its packages. objtool and modpost are
//! programs of that release. Packages are unpacked and not configured, which takes a third of the
//! time.

use super::kbuild::{Headers, newest};
use crate::rig;
use crate::tool;
use crate::workspace::{Workspace, empty_dir, run, write};
use std::os::unix::fs::symlink;
use std::path::Path;

/// The program that the host runs, and its package.
pub(super) const TOOL: (&str, &str) = ("mmdebstrap", "mmdebstrap");

/// The packages that a module is built with, beside those that the headers depend on.
const PACKAGES: &str = "make,binutils,base-files,coreutils,dash,findutils,grep,mawk,sed";

/// Installs the headers of Debian `name` below `dir`. They see `dir` under the same name.
pub(super) fn headers(w: &Workspace, name: &str, dir: &Path) -> Result<Headers, String> {
    tool::debian(w, TOOL.0, TOOL.1)?;
    let root = dir.join(format!("debian-{name}"));
    let done = root.join(".made");
    if !done.exists() {
        empty_dir(&root)?;
        let sources = rig::sources(w, name)?;
        let list = dir.join(format!("debian-{name}.list"));
        write(&list, sources.list)?;
        let mut mmdebstrap = w.program("mmdebstrap");
        mmdebstrap.args(["--quiet", "--variant=extract", "--aptopt=APT::Install-Recommends \"false\""]);
        mmdebstrap.arg(format!("--include=linux-headers-amd64{},{PACKAGES}", sources.kernel_from));
        run(mmdebstrap.arg(sources.codename).arg(&root).arg(&list))?;
        for folder in ["proc", "tmp"] {
            let folder = root.join(folder);
            std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        // Does what mawk's configuration does.
        let awk = root.join("usr/bin/awk");
        symlink("mawk", &awk).map_err(|e| format!("{}: {e}", awk.display()))?;
        write(&done, "")?;
    }
    let build = newest(&root)?;
    // A path inside the chroot; its link target may be one, too.
    let inside = build.strip_prefix(&root).map_err(|_| format!("{} is not below", build.display()))?;
    let folder = inside.parent().and_then(|kernel| kernel.file_name()).unwrap_or_default();
    let version = folder.to_string_lossy().into_owned();
    Ok(Headers { dir: Path::new("/").join(inside), version, root: Some(root) })
}
