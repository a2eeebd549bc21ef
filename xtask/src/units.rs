//! The layer `units`: systemd's own check of the units in `dist`, without starting any.
//!
//! ```text
//!   dist/pregrant*  --copied beside systemd's own units-->  target/units   systemd-analyze verify: no word of complaint
//!                                                                          systemd-analyze security: below each unit's bound
//! ```
//! Whether they work, sandbox and all, shows in the rig's scenario `56-units`.

use crate::tool;
use crate::workspace::{Workspace, empty_dir};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Units that run a program, each with the exposure that it must stay below, in tenths: systemd
/// counts from 0 to 100.
const SERVICES: [(&str, u32); 6] = [
    ("pregrant-back.service", 30),
    ("pregrant-blkback.service", 30),
    ("pregrant-metrics.service", 25),
    ("pregrant-textfile.service", 25),
    // Both are root's tools, and short: they cannot be as narrow.
    ("pregrant-modules.service", 50),
    ("pregrant-hotplug@.service", 50),
];
/// The directories of systemd's own units, which ours refer to.
const SYSTEM_UNITS: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
/// Programs that the units start. They must exist for the check, and are not run.
const PROGRAMS: [&str; 3] = ["usr/local/bin/pregrant", "sbin/modprobe", "bin/sh"];

pub fn layer(w: &Workspace) -> Result<(), String> {
    if !tool::debian(w, "systemd-analyze", "systemd")? {
        return Ok(());
    }
    let units = units(&w.root().join("dist"))?;
    let root = make_root(w, &units)?;
    let mut verify = w.program("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(format!("--root={}", root.display()));
    verify.args(units.iter().map(|unit| name(unit).replace("@.", "@1.")));
    let out = verify.output().map_err(|e| format!("systemd-analyze: {e}"))?;
    complaints(out.status.success(), &String::from_utf8_lossy(&out.stderr))?;
    for (unit, bound) in SERVICES {
        let mut security = w.program("systemd-analyze");
        security.args(["security", "--no-pager", "--offline=true", &format!("--threshold={bound}")]);
        let out = security.arg(w.root().join("dist").join(unit)).output();
        let out = out.map_err(|e| format!("systemd-analyze: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let said = text.lines().rfind(|l| l.contains("exposure level")).unwrap_or("no exposure level");
        println!("{said}, to stay below {}.{}", bound / 10, bound % 10);
        if !out.status.success() {
            let open = text.lines().filter(|l| l.starts_with('✗')).collect::<Vec<_>>().join("\n");
            return Err(format!("{unit} is more exposed than it may be; what is open:\n{open}"));
        }
    }
    Ok(())
}

/// The units of the folder.
fn units(dist: &Path) -> Result<Vec<PathBuf>, String> {
    let at = |e| format!("{}: {e}", dist.display());
    let is_unit =
        |path: &PathBuf| path.extension().is_some_and(|e| e == "service" || e == "socket" || e == "timer");
    let mut units: Vec<PathBuf> =
        fs::read_dir(dist).map_err(at)?.flatten().map(|f| f.path()).filter(is_unit).collect();
    units.sort();
    match SERVICES.iter().find(|(known, _)| !units.iter().any(|unit| name(unit) == *known)) {
        Some((gone, _)) => Err(format!("{} has no {gone}", dist.display())),
        None if units.iter().any(|u| name(u).ends_with("service") && !is_bounded(&name(u))) => {
            Err("a service of dist has no bound in xtask/src/units.rs".into())
        }
        None => Ok(units),
    }
}

fn is_bounded(unit: &str) -> bool {
    SERVICES.iter().any(|(known, _)| *known == unit)
}

fn name(unit: &Path) -> String {
    unit.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file system with the units, those that they name, and programs of the right names.
fn make_root(w: &Workspace, units: &[PathBuf]) -> Result<PathBuf, String> {
    let root = w.target().join("units");
    empty_dir(&root)?;
    let copy = |from: &Path, to: PathBuf| -> Result<(), String> {
        let folder = to.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        fs::copy(from, &to).map(drop).map_err(|e| format!("{}: {e}", from.display()))
    };
    for unit in units {
        copy(unit, root.join("etc/systemd/system").join(name(unit)))?;
    }
    let system = SYSTEM_UNITS.iter().find(|dir| Path::new(dir).is_dir());
    let system = system.ok_or("systemd has no units of its own here")?;
    let own = fs::read_dir(system).map_err(|e| format!("{system}: {e}"))?;
    for unit in own.flatten().map(|f| f.path()).filter(|path| path.is_file()) {
        copy(&unit, root.join("usr/lib/systemd/system").join(name(&unit)))?;
    }
    for program in PROGRAMS {
        let to = root.join(program);
        copy(Path::new("/bin/true"), to.clone())?;
        let run = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&to, run).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(root)
}

/// Returns the complaints in the output of `systemd-analyze verify`, which reports a key that it
/// does not know without failing.
fn complaints(succeeded: bool, said: &str) -> Result<(), String> {
    match said.trim() {
        "" if succeeded => Ok(()),
        "" => Err("`systemd-analyze verify` fails, and does not say why".into()),
        said => Err(format!("`systemd-analyze verify` says:\n{said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_a_bound_and_every_bound_a_service() {
        let dist = Workspace::find().root().join("dist");
        let services = units(&dist).unwrap().iter().filter(|unit| name(unit).ends_with("service")).count();
        assert_eq!(services, SERVICES.len());
        assert!(units(&dist.join("..").join("docs")).unwrap_err().contains("pregrant-back.service"));
    }

    #[test]
    fn a_word_of_complaint_is_a_failure() {
        assert_eq!(complaints(true, "\n"), Ok(()));
        assert!(
            complaints(true, "x.service:3: Unknown key 'Nope' in section [Service], ignoring.\n").is_err()
        );
        assert!(complaints(false, "").is_err());
    }
}
