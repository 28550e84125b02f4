"""Where schemas stand within a JSON schema."""

OF_ONE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
OF_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
OF_MAP = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
