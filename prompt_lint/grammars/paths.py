"""Paths, file names, version-control state and the labels under which an environment is printed."""

from __future__ import annotations

import re

PATH = re.compile(
    r"(?:[A-Za-z]:\\|~?/|\.{1,2}/)[\w.@+~-]+(?:[/\\][\w.@+~ -]*[\w.@+~-])*/?"
    r"|\b[\w.-]+(?:/[\w.@+-]+)+|\b[\w-]+\.(?:py|ts|tsx|js|jsx|go|rs|java|kt|c|cc|cpp|h|hpp|rb|php|cs|swift|scala|sh|sql"
    r"|md|txt|rst|json|jsonl|ya?ml|toml|ini|cfg|csv|tsv|xml|html?|css|pdf|docx?|xlsx?|pptx?|png|jpe?g|"
    r"gif|svg|webp|mp[34]|wav|log|zip|tar|gz"
    r"|parquet|ipynb|lock|proto|bin|db|sqlite)\b"
)
GIT_STATE = re.compile(
    r"^\s*(?:M|A|D|R|C|U|\?\?|MM|AM)\s+\S+|\b(?:clean|dirty|ahead|behind|detached|untracked|modified|"
    r"staged|conflicts?)\b",
    re.MULTILINE,
)
ENVIRONMENT_LABEL = re.compile(
    r"\b(?:cwd|working (?:dir(?:ectory)?|tree|copy|folder)|work ?tree|current (?:dir(?:ectory)?|"
    r"folder|branch|file|selection|page|url|tab|screen|window)"
    r"|branch|git(?: status| branch| log| diff)?|status|head|commits?|repo(?:sitory)?|host(?: ?name)?|"
    r"machine|platform|operating system|os|kernel|shell"
    r"|device(?:s)?(?: state)?|battery|network|file ?tree|project (?:structure|layout|tree|files)|"
    r"directory (?:structure|listing|tree)|open (?:files|tabs|buffers|editors|windows)"
    r"|(?:attached |available |uploaded |generated |existing )?(?:files|artifacts?|attachments|"
    r"documents on disk)|workspace|environment|sandbox|container|cluster|pods?|processes|ports"
    r"|cursor|selection|clipboard|running (?:tasks|jobs|processes)|state of|sensors?|lights?|entities|"
    r"todo(?:s| list)?|tasks?|inventory|location|weather|diagnostics|lint(?:er)? errors"
    r"|arbeitsverzeichnis|arbeitsbaum|arbeitskopie|zweig|verzeichnis|dateien|geräte|zustand|rechner|"
    r"répertoire(?: de travail| courant)?|branche|fichiers|état|appareils"
    r"|directorio(?: de trabajo| actual)?|rama|archivos|estado|dispositivos|diretório|arquivos|ramo|"
    r"cartella|file aperti"
    r"|当前目录|工作目录|分支|文件|状态|设备|作業ディレクトリ|ブランチ|ファイル|状態"
    r"|рабочий каталог|ветка|файлы|состояние)",
    re.IGNORECASE,
)
VCS_LABEL = re.compile(r"\b(?:git|branch|head|commit|revision|sha|zweig|branche|rama|分支|ветка)\b", re.IGNORECASE)

HOST_LABEL = re.compile(r"\b(?:host(?: ?name)?|machine|pod|node|container|rechner)(?: ?name)?\W{1,3}$", re.IGNORECASE)


def is_pathlike(text: str) -> bool:
    """True when a changed piece of text holds a path, a file name or version-control state."""
    return bool(PATH.search(text) or GIT_STATE.search(text))


def label_of(line: str, position: int) -> str:
    """What stands before a value on its line: `Branch` of `Branch: main`."""
    return re.split(r"[\[({\"'`]", line[:position])[0].rstrip()
