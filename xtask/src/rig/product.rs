//! The program that users get, asked once it is built: it has neither of the paths that real Xen
//! refuses, which are the laboratory's (`pregrant::net::path::research`).
//!
//! ```text
//!   pregrant       built by `-p pregrant-cli` alone   --path foreign: refused, by name     no function of the two folders
//!   pregrant-lab   built with the feature `research`                                       has some, or nothing is looked for
//! ```

use crate::tool;
use crate::workspace::{Workspace, output};
use std::path::Path;

/// Command lines that name a path which the product must refuse.
const REFUSED: [&[&str]; 4] = [
    &["back", "--loopback", "/none", "--path", "foreign"],
    &["back", "--loopback", "/none", "--path", "guest-copy"],
    &["front", "--loopback", "/none", "--tap", "x", "--path", "foreign"],
    &["front", "--loopback", "/none", "--tap", "x", "--path", "guest-copy"],
];

/// The folders of these paths, below `path/research`.
const FOLDERS: [&str; 2] = ["foreign", "guest_copy"];

/// clap's exit code for wrong usage.
const WRONG_USAGE: i32 = 2;

/// Runs the product with these command lines, and searches both programs for functions of these
/// folders.
pub(super) fn check(w: &Workspace, product: &Path, laboratory: &Path) -> Result<(), String> {
    for args in REFUSED {
        let shown = format!("{} {}", product.display(), args.join(" "));
        let out = w.program(&product.to_string_lossy()).args(args).output();
        let out = out.map_err(|e| format!("`{shown}` did not start: {e}"))?;
        let said = String::from_utf8_lossy(&out.stderr);
        let named = format!("--path {} is not in this program", args.last().unwrap_or(&""));
        if out.status.code() != Some(WRONG_USAGE) || !said.contains(&named) || !said.contains("pregrant-lab")
        {
            return Err(format!("`{shown}` is not refused by name, but ended with {}: {said}", out.status));
        }
    }
    tool::debian(w, "nm", "binutils")?;
    let symbols = |program: &Path| output(w.program("nm").arg(program));
    let (of_product, of_laboratory) = (folders(&symbols(product)?), folders(&symbols(laboratory)?));
    if !of_product.is_empty() {
        return Err(format!(
            "{} has functions of {}: it was built together with something that has the feature `research`",
            product.display(),
            of_product.join(" and ")
        ));
    }
    if of_laboratory != FOLDERS {
        return Err(format!(
            "{} has functions of {of_laboratory:?} alone: xtask/src/rig/product.rs looks for symbols that there are not any more",
            laboratory.display()
        ));
    }
    println!("rig: `pregrant` has no path that real Xen refuses");
    Ok(())
}

/// Returns the folders of which a program has functions. The symbols of functions name them, and so
/// do those of trait methods, which rustc's older mangling writes in another way.
fn folders(symbols: &str) -> Vec<&'static str> {
    let has = |folder: &&str| {
        symbols.contains(&format!("8research{}{folder}", folder.len()))
            || symbols.contains(&format!("research..{folder}.."))
    };
    FOLDERS.into_iter().filter(has).collect()
}

#[cfg(test)]
mod tests {
    use super::{FOLDERS, folders};

    #[test]
    fn functions_are_found_in_each_mangling() {
        let legacy = "_ZN8pregrant3net4path8research7foreign4back20ForeignPath$LT$P$GT$4pair17h0E";
        let v0 = "_RNvNtNtNtNtNtCs_8pregrant3net4path8research10guest_copy4back10lent_pages";
        let of_trait =
            "_ZN99_$LT$pregrant..net..path..research..foreign..negotiation..Foreign$u20$as$u20$x$GT$6acceptE";
        let others = "_ZN8pregrant3net4path8research6absent6accept17h0E\n__rust_foreign_exception";
        assert_eq!(folders(legacy), FOLDERS[..1]);
        assert_eq!(folders(of_trait), FOLDERS[..1]);
        assert_eq!(folders(v0), FOLDERS[1..]);
        assert_eq!(folders(others), [""; 0]);
    }
}
